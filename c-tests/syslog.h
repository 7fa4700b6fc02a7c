/*
 * syslog.h -- the functions of <syslog.h> that write, for a program that looks at what a library
 * logs. They are found before those of the C library if the program is linked with -rdynamic.
 */
#ifndef TESTS_SYSLOG_H
#define TESTS_SYSLOG_H

#include <stdarg.h>
#include <stdio.h>
#include <syslog.h>

/* Sees each line; where is "syslog" and its severity. Each program has its own. */
static void syslogged(int priority, const char *where, const char *line);

#pragma GCC visibility push(default)

void vsyslog(int priority, const char *format, va_list args)
{
	static const char *const names[] = {
		"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug",
	};
	char line[4096], where[32];

	vsnprintf(line, sizeof(line), format, args);
	snprintf(where, sizeof(where), "syslog %s", names[LOG_PRI(priority)]);
	syslogged(priority, where, line);
}

void syslog(int priority, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsyslog(priority, format, args);
	va_end(args);
}

/* The names under which fortified libraries call the two. */
void __vsyslog_chk(int priority, int flag, const char *format, va_list args);
void __syslog_chk(int priority, int flag, const char *format, ...);

void __vsyslog_chk(int priority, int flag, const char *format, va_list args)
{
	(void)flag;
	vsyslog(priority, format, args);
}

void __syslog_chk(int priority, int flag, const char *format, ...)
{
	va_list args;

	(void)flag;
	va_start(args, format);
	vsyslog(priority, format, args);
	va_end(args);
}

#pragma GCC visibility pop

#endif
