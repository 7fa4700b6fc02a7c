/* atomic_write.h -- the server's memory, as both sides know it: lines, and how many of them count. */
#ifndef ATOMIC_WRITE_H
#define ATOMIC_WRITE_H

#include <stdint.h>

#define LINES 8
#define LINE_SIZE 48

struct board {
	uint64_t count; /* at a multiple of 8, as an atomic write has to be */
	char lines[LINES][LINE_SIZE];
};

#endif
