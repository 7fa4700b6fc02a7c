/*
 * logs.c -- scenarios of the log: what people look for in it, to the letter, in a function of the
 * program's own, in syslog and on stderr. The rest of the wording is each library's own.
 */
#include "recorded.h"
#include "../syslog.h"

#include <sys/mman.h>

static const char notice[] = "*NOTE*  ";

/* A message, if it is one that people look for. */
static void show_message(const char *where, const char *level, bool whole, const char *message)
{
	size_t n = strlen(message);
	unsigned hash = 0;

	for (size_t i = 0; i < n; i++)
		hash = hash * 31 + (unsigned char)message[i];
	if (whole)
		recorder_line("    %s, %s, %zu bytes, %s... (%#x)", where, level, n,
				hex(message, n < 40 ? n : 40), hash);
	else
		recorder_line("    %s, %s", where, level);
}

/* ---- a function of the program's own ---- */

static void own_function(enum rpma_log_level level, const char *file, const int line,
		const char *function, const char *format, ...)
{
	char message[8192];
	va_list args;

	(void)file, (void)line, (void)function;
	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	show_message("own function", level_name(level), level == RPMA_LOG_LEVEL_NOTICE, message);
}

/* ---- the function built in ---- */

/* `LEVEL file: line: function: message` */
static void show_line(const char *where, const char *line)
{
	size_t n = strcspn(line + 1, "*") + 2;
	const char *message = line;
	char level[16];

	n += strspn(line + n, " ");
	snprintf(level, sizeof(level), "%.*s", (int)n, line);
	for (int i = 0; i < 3 && message != NULL; i++)
		message = strstr(message + (i > 0), ": ");
	if (message == NULL)
		recorder_line("    %s, no line: %s", where, line);
	else
		show_message(where, level, strcmp(level, notice) == 0, message + 2);
}

static int stderr_before, caught;

static void catch_stderr(void)
{
	fflush(stderr);
	stderr_before = dup(2);
	caught = memfd_create("stderr", 0);
	if (stderr_before < 0 || caught < 0 || dup2(caught, 2) != 2)
		FAIL("stderr can't be caught: %s", strerror(errno));
}

/* What stands before the thread, `Mon DD HH:MM:SS.uuuuuu [`. */
#define BEFORE_THREAD 24

/* What was written there: lines that begin with the time and the thread, and may be cut. */
static void show_stderr(void)
{
	char text[16384];
	ssize_t n;

	fflush(stderr);
	dup2(stderr_before, 2);
	close(stderr_before);
	n = pread(caught, text, sizeof(text) - 1, 0);
	close(caught);
	text[n > 0 ? n : 0] = '\0';
	for (char *at = text; (at = strstr(at, "] *")) != NULL;) {
		char line[4096];
		const char *last = strstr(at + 3, "] *");

		if (last == NULL)
			last = at + strlen(at);
		else
			last = (char *)memrchr(at, '[', (size_t)(last - at)) + 1 - BEFORE_THREAD;
		snprintf(line, sizeof(line), "%.*s", (int)(last - at - 2), at + 2);
		show_line("stderr", line);
		at += 3;
	}
}

static void syslogged(int priority, const char *where, const char *line)
{
	(void)priority;
	show_line(where, line);
}

/* ---- the scenarios ---- */

static void set_log(rpma_log_function *function, enum rpma_log_level aux)
{
	rpma_log_set_function(function);
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, aux);
}

/* Addresses that are shown as they are. */
void announcements(void)
{
	static char lengths[][3000] = {{""}, {""}, {""}, {""}};
	static const size_t length[] = {2999, 1100, 989, 980};
	const char *addresses[8] = {"10.77.0.1", "h\xff\xfest%s%n", "", "\xf4\x8f\xbc\x80"};

	for (size_t i = 0; i < COUNT(length); i++) {
		memset(lengths[i], 'a', length[i]);
		addresses[4 + i] = lengths[i];
	}
	if (!have_peer())
		return;
	for (int built_in = 0; built_in <= 1; built_in++) {
		for (size_t i = 0; i < COUNT(addresses); i++) {
			const char *address = addresses[i];

			if (built_in)
				catch_stderr();
			set_log(built_in ? RPMA_LOG_USE_DEFAULT_FUNCTION : own_function,
					RPMA_LOG_LEVEL_DEBUG);
			if (CALL(rpma_ep_listen(in.peer, address, "7471", OUT)) == 0)
				take(&in.ep);
			if (CALL(rpma_conn_req_new(in.peer, address, "74\xc0", NULL, OUT)) == 0)
				take(&in.req);
			set_log(log_capture, RPMA_LOG_DISABLED);
			if (built_in)
				show_stderr();
			if (in.req != NULL)
				NEED(rpma_conn_req_delete(&in.req));
			if (in.ep != NULL)
				NEED(rpma_ep_shutdown(&in.ep));
		}
	}
	end_all();
}

/* A message of each level. */
void levels(void)
{
	static const unsigned char desc[21] = {[20] = 1};

	if (!have_peer())
		return;
	catch_stderr();
	set_log(RPMA_LOG_USE_DEFAULT_FUNCTION, RPMA_LOG_LEVEL_DEBUG);
	CALL(rpma_mr_remote_from_descriptor(desc, 20, OUT));
	if (CALL(rpma_mr_remote_from_descriptor(desc, 21, OUT)) == 0)
		take(&in.remote);
	if (CALL(rpma_peer_cfg_from_descriptor(desc, 1, OUT)) == 0)
		take(&in.peer_cfg);
	if (CALL(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", NULL, OUT)) == 0 && take(&in.req) &&
			CALL(rpma_conn_req_connect(&in.req, NULL, OUT)) == 0 && take(&in.conn)) {
		recorder_cm_event(RDMA_CM_EVENT_ADDR_CHANGE, NULL, 0);
		CALL(rpma_conn_next_event(in.conn, OUT));
		recorder_cm_event(RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
		CALL(rpma_conn_next_event(in.conn, OUT));
		CALL(rpma_conn_disconnect(in.conn));
		NEED(rpma_conn_delete(&in.conn));
	}
	recorder_change("no-pages");
	if (CALL(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", NULL, OUT)) == 0 && take(&in.req))
		CALL(rpma_conn_req_connect(&in.req, NULL, OUT));
	set_log(log_capture, RPMA_LOG_DISABLED);
	show_stderr();
	end_all();
}
