/*
 * log.c -- the log: its thresholds, a function of the program's own, and the
 * default function, whose stderr is read through a pipe. What goes to syslog is
 * seen by defining the functions of syslog.h: a program's symbols come before
 * those of the C library (it is linked with -rdynamic).
 */
#include "../common.h"
#include "../syslog.h"
#include <regex.h>
#include <sys/syscall.h>
#include <time.h>

/* ---- syslog ---- */

static struct {
	int opened;
	char ident[16];
	int option, facility;
} syslog_seen;

/* One line of the default function, less the wording and places of each library. */
static void show_line(const char *key, const char *line, const char *prefix_pattern)
{
	char pattern[256];
	regex_t regex;
	regmatch_t part[3];

	snprintf(pattern, sizeof(pattern),
		"^%s(\\*[A-Z]+\\* +)[^: ]+: [ 0-9]{2}[0-9]+: [^: ]+: ([^\n]+\n?)$",
		prefix_pattern);
	if (regcomp(&regex, pattern, REG_EXTENDED) != 0)
		FAIL("pattern %s", pattern);
	if (regexec(&regex, line, COUNT(part), part, 0) != 0) {
		show(key, "not of the form %s: %s", pattern, line);
	} else {
		int length = part[2].rm_eo - part[2].rm_so;

		show(key, "level '%.*s' ending %s", (int)(part[1].rm_eo - part[1].rm_so),
			line + part[1].rm_so,
			line[strlen(line) - 1] == '\n' ? "in a newline" : "without newline");
		if (length > 500)
			show(key, "%d bytes of message", length);
	}
	regfree(&regex);
}

void openlog(const char *ident, int option, int facility)
{
	syslog_seen.opened++;
	snprintf(syslog_seen.ident, sizeof(syslog_seen.ident), "%s", ident);
	syslog_seen.option = option;
	syslog_seen.facility = facility;
}

static void after_unload(void);

void closelog(void)
{
	show("closelog", "called");
	/* What is registered while the libraries are unloaded runs when they are, the code still there. */
	if (atexit(after_unload) != 0)
		FAIL("atexit");
}

static void syslogged(int priority, const char *where, const char *line)
{
	if (LOG_FAC(priority) != 0 && (priority & LOG_FACMASK) != LOG_LOCAL7)
		show(where, "facility %d", LOG_FAC(priority));
	show_line(where, line, "");
}

/* ---- stderr ---- */

static int real_stderr, pipe_end;
static long long caught_since;

/* In microseconds. */
static long long clock_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void catch_stderr(void)
{
	int ends[2];

	caught_since = clock_now();
	fflush(stderr);
	real_stderr = dup(2);
	if (real_stderr < 0 || pipe(ends) != 0 || dup2(ends[1], 2) != 2)
		FAIL("no pipe");
	close(ends[1]);
	pipe_end = ends[0];
}

static void show_stderr(void)
{
	long long until = clock_now(), when;
	char text[8192];
	size_t n = 0;
	ssize_t got;

	fflush(stderr);
	dup2(real_stderr, 2); /* closes the last writing end */
	close(real_stderr);
	while ((got = read(pipe_end, text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)got;
	close(pipe_end);
	text[n] = '\0';
	if (n == 0)
		show("stderr", "nothing");
	for (char *line = text, *end; *line != '\0'; line = end) {
		char copy[2048], tid[32];
		time_t now = time(NULL);
		struct tm tm = *localtime(&now);
		char *rest;

		end = strchr(line, '\n');
		end = end != NULL ? end + 1 : line + strlen(line);
		snprintf(copy, sizeof(copy), "%.*s", (int)(end - line), line);
		snprintf(tid, sizeof(tid), "[%ld]", syscall(SYS_gettid));
		show_line("stderr", copy, "[A-Z][a-z]{2} [0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}"
				"\\.[0-9]{6} \\[[0-9]+\\] ");
		rest = strptime(copy, "%b %d %H:%M:%S", &tm);
		tm.tm_isdst = -1;
		when = mktime(&tm) * 1000000LL + (rest != NULL ? atol(rest + 1) : 0);
		show("stderr", "time %s, thread %s",
			rest != NULL && when >= caught_since && when <= until ? "now" : copy,
			strstr(copy, tid) != NULL ? "mine" : copy);
	}
}

/* ---- the cases ---- */

/* One message of each level that needs no device. */
static void log_debug(void)
{
	static const unsigned char desc[21] = {[20] = 1};
	struct rpma_mr_remote *mr;

	TRY(rpma_mr_remote_from_descriptor(desc, sizeof(desc), &mr));
	MUST(rpma_mr_remote_delete(&mr));
}

static void log_info(void)
{
	struct rpma_peer_cfg *cfg;

	TRY(rpma_peer_cfg_from_descriptor("\1", 1, &cfg));
	MUST(rpma_peer_cfg_delete(&cfg));
}

static void log_error(void)
{
	TRY(rpma_mr_remote_from_descriptor(DUMMY, 20, OUT));
}

static void log_each(void)
{
	log_debug();
	log_info();
	log_error();
}

static void show_thresholds(void)
{
	enum rpma_log_level level = (enum rpma_log_level)77;

	MUST(rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level));
	show("main threshold", "%d", (int)level);
	MUST(rpma_log_get_threshold(RPMA_LOG_THRESHOLD_AUX, &level));
	show("aux threshold", "%d", (int)level);
}

static void set_threshold(enum rpma_log_threshold threshold, int level)
{
	char key[64];

	snprintf(key, sizeof(key), "set %s threshold %d",
			threshold == RPMA_LOG_THRESHOLD ? "main" : "aux", level);
	TRY_AS(key, rpma_log_set_threshold(threshold, (enum rpma_log_level)level));
}

static void start(void)
{
	show("openlog", "%d times, ident %s, option 0x%x, facility %d", syslog_seen.opened,
			syslog_seen.ident, (unsigned)syslog_seen.option,
			syslog_seen.facility >> 3);
	show_thresholds();
	catch_stderr();
	log_each();
	show_stderr();
}

static void thresholds(void)
{
	static const int levels[] = {INT_MIN, -2, -1, 0, 1, 2, 3, 4, 5, 6, INT_MAX};

	for (size_t i = 0; i < COUNT(levels); i++) {
		set_threshold(RPMA_LOG_THRESHOLD, levels[i]);
		show_thresholds();
	}
	for (size_t i = 0; i < COUNT(levels); i++) {
		set_threshold(RPMA_LOG_THRESHOLD_AUX, levels[i]);
		show_thresholds();
	}
}

static void own_function(void)
{
	/* The aux threshold is not the own function's matter. */
	for (int aux = RPMA_LOG_DISABLED; aux <= RPMA_LOG_LEVEL_DEBUG; aux += 6) {
		set_threshold(RPMA_LOG_THRESHOLD_AUX, aux);
		for (int level = RPMA_LOG_DISABLED; level <= RPMA_LOG_LEVEL_DEBUG; level++) {
			set_threshold(RPMA_LOG_THRESHOLD, level);
			catch_stderr();
			log_each();
			show_stderr();
		}
	}
	TRY(rpma_log_set_function(NULL));
	catch_stderr();
	log_each();
	show_stderr();
	TRY(rpma_log_set_function(log_capture));
	log_each();
}

static void default_function(void)
{
	TRY(rpma_log_set_function(RPMA_LOG_USE_DEFAULT_FUNCTION));
	for (int level = RPMA_LOG_DISABLED; level <= RPMA_LOG_LEVEL_DEBUG; level++) {
		for (int aux = RPMA_LOG_DISABLED; aux <= RPMA_LOG_LEVEL_DEBUG; aux++) {
			set_threshold(RPMA_LOG_THRESHOLD, level);
			set_threshold(RPMA_LOG_THRESHOLD_AUX, aux);
			catch_stderr();
			log_each();
			show_stderr();
		}
	}
}

/* A message of more bytes than there is room for is cut, not lost. */
static void long_message(void)
{
	static char name[3000];

	memset(name, 'a', sizeof(name) - 1);
	set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_DEBUG);
	catch_stderr();
	TRY(rpma_conn_req_new(DUMMY, name, "1", NULL, OUT));
	show_stderr();
}

/* The program is about to end, and so is the library: nothing is logged unless that is asked for. */
static void after_unload(void)
{
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_DISABLED);
	log_each();
	TRY(rpma_log_set_function(RPMA_LOG_USE_DEFAULT_FUNCTION));
	log_each();
	fflush(stdout);
}

static const struct test_case cases[] = {
	{.name = "start", .run = start, .log_untouched = true},
	{.name = "thresholds", .run = thresholds},
	{.name = "own-function", .run = own_function},
	{.name = "default-function", .run = default_function},
	{.name = "long-message", .run = long_message, .log_untouched = true},
};

MAIN(cases)
