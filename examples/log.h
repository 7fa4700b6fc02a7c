/*
 * log.h -- a log in persistent memory, as the writer and the replicas know it.
 *
 * It has records one after another, and a mark: how many bytes of records there are. What is behind
 * the mark is not there. So a record is appended by writing it behind the mark, making it persistent,
 * and moving the mark, which takes one atomic write: a crash leaves the log as it was before, or as it
 * is after.
 *
 * Each writer has a number, its epoch, that none before it had, and every record says by which writer
 * it was appended.
 */
#ifndef LOG_H
#define LOG_H

#include "common.h"

#define LOG_SIZE ((size_t)1 << 20)
#define LOG_MAGIC "rpmalog1"
#define ALIGNED(size) (((size) + 7) & ~(uint64_t)7)

struct record {
	uint64_t epoch;
	uint64_t length; /* of the text that follows; 0: the writer of this epoch begins here */
};

struct log {
	char magic[8]; /* nothing but zeros: a new log, whatever else is in it */
	uint64_t epoch; /* of the last writer that was here, even if it appended nothing */
	uint64_t mark;
	char unused[40];
	char records[LOG_SIZE - 64];
};

static inline bool is_new(const struct log *log)
{
	static const char zeros[sizeof(log->magic)];

	return memcmp(log->magic, zeros, sizeof(zeros)) == 0;
}

/* The record at `*at`, which is moved behind it; NULL at the mark, or where there is no good one. */
static inline const char *next_record(const struct log *log, uint64_t *at, struct record *record)
{
	const char *start = log->records + *at;
	uint64_t left = log->mark - *at;

	if (left < sizeof(*record))
		return NULL;
	memcpy(record, start, sizeof(*record));
	left -= sizeof(*record);
	if (record->length > left || ALIGNED(record->length) > left)
		return NULL;
	*at += sizeof(*record) + ALIGNED(record->length);
	return start + sizeof(*record);
}

/* Whether it is a log, good up to its mark. Tells who appended the last record; 0 if nobody has. */
static inline bool check_log(const struct log *log, uint64_t *last_epoch)
{
	struct record record;
	uint64_t at = 0;

	*last_epoch = 0;
	if (memcmp(log->magic, LOG_MAGIC, sizeof(log->magic)) != 0 || log->mark > sizeof(log->records))
		return false;
	while (next_record(log, &at, &record) != NULL) {
		if (record.epoch < *last_epoch || record.epoch > log->epoch)
			return false;
		*last_epoch = record.epoch;
	}
	return at == log->mark;
}

#endif
