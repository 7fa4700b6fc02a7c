/*
 * recorded.h -- scenarios over the recording stack.
 *
 * A scenario is a function that goes through a part of the interface, for one device and one
 * configuration of connections. What it prints is compared between libraries (tests/recorded.rs):
 * as it is, and with every call below that can fail failing.
 *
 *   recorded points    runs each scenario as it is and prints all that could have failed
 *   recorded run       runs the cases that stdin lists: SCENARIO, a tab, `clean` or a fault, which
 *                      is API:CALL:NTH=ERRNO, or with += what can fail after that fails too
 *   recorded here      the same without a process for each, for valgrind
 */
#ifndef RECORDED_H
#define RECORDED_H

#include "../common.h"
#include "../recorder/recorder.h"
#include <netdb.h>
#include <signal.h>
#include <sys/mman.h>

struct scenario {
	const char *name;
	void (*run)(void);
	const char *device; /* words for recorder_begin() */
	const char *cfg;    /* words for set_up_cfg() */
	bool clean;         /* without faults */
};

/* The one that runs. */
static const struct scenario *scenario;

/* What there is of everything while a scenario runs. */
static struct {
	struct ibv_context *context;
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_mr_remote *remote;
	struct rpma_srq_cfg *srq_cfg;
	struct rpma_srq *srq;
	struct rpma_conn_cfg *cfg;
	struct rpma_peer_cfg *peer_cfg;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_cq *cq, *rcq;
} in;

/* Memory that the scenarios register. */
static unsigned char memory[8192] __attribute__((aligned(4096)));

/* A call that is written down and may fail; its code. */
#define CALL(call) (enter(true), leave(#call, (call)))

/* One that a scenario needs and that is another's to look at; whether it worked. */
#define NEED(call) (enter(false), needed(#call, (call)))

/* A call that ends an object: what it makes of the handle is written too. */
#define END(function, handle) \
	do { \
		CALL(function(&(handle))); \
		recorder_line("    handle %s", (handle) == NULL ? "NULL" : "kept"); \
	} while (0)

/* What a call gave. */
#define GAVE(type) (*(type *)OUT)

/* How long a case may take, which is many times what it does take. */
#define LIMIT_S 20

static bool here; /* all in this process */

static void enter(bool written)
{
	before();
	recorder_enter(written);
}

static int leave(const char *call, int ret)
{
	bool kept = out_is_kept();
	bool uses_out = strstr(call, "OUT") != NULL;
	const char *out = uses_out ? " out kept" : "";
	char written[32];

	recorder_leave();
	if (!kept && ret == 0)
		out = " out written";
	if (!kept && ret != 0) {
		snprintf(written, sizeof(written), " out %s", hex(OUT, 8));
		out = written;
	}
	recorder_line("%s = %s%s log %s", call, code_name(ret), out, log_summary());
	/* Which lines show it at all is each library's own. */
	if (strncmp(call, "rpma_read(", 10) == 0 && strstr(log_text(), "9abcdef0") != NULL)
		recorder_line("    context %s in the log", strstr(log_text(), "123456789abcdef0") != NULL ?
				"whole" : "cut");
	return ret;
}

static bool needed(const char *call, int ret)
{
	recorder_leave();
	if (ret != 0)
		recorder_line("%s = %s, which this scenario needs%s", call, code_name(ret), log_text());
	return ret == 0;
}

/* How much memory of the library's there is, if recorder/memory.c is linked in. */
__attribute__((weak)) unsigned memory_in_use(void);

/* Runs one case, whose trace is then in recorder_trace. */
static void run_case(const struct scenario *s, const struct fault *fault)
{
	scenario = s;
	memset(&in, 0, sizeof(in));
	recorder_begin(s->device, fault);
	recorder_memory("memory", memory, sizeof(memory));
	in.context = recorder_device();
	s->run();
	recorder_line("alive %s", recorder_alive());
	if (memory_in_use != NULL)
		recorder_line("memory in use: %u", memory_in_use());
}

static void run_in_child(const struct scenario *s, const struct fault *fault)
{
	struct recorder_trace *trace = recorder_trace;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(LIMIT_S);
		run_case(s, fault);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		FAIL("no child process: %s", strerror(errno));
	if (WIFSIGNALED(status))
		trace->length += (size_t)sprintf(trace->text + trace->length, "killed by SIG%s\n",
				sigabbrev_np(WTERMSIG(status)));
}

static void print_points(const struct scenario *s)
{
	printf("%s\tclean\n", s->name);
	if (s->clean)
		return;
	run_in_child(s, NULL);
	for (int i = 0; i < recorder_trace->points; i++)
		printf("%s\t%d:%s:%d\n", s->name, recorder_trace->point[i].api,
				recorder_trace->point[i].call, recorder_trace->point[i].nth);
}

static int error_of(const char *name)
{
	if (strcmp(name, "0") == 0)
		return 0;
	if (strcmp(name, "EAI_NONAME") == 0)
		return EAI_NONAME;
	for (int error = 1; error < 256; error++)
		if (strerrorname_np(error) != NULL && strcmp(strerrorname_np(error), name) == 0)
			return error;
	FAIL("no such errno: %s", name);
}

static struct fault parse(const char *text)
{
	struct fault fault = {0};
	char name[32], on[2] = "";

	if (strcmp(text, "clean") == 0)
		return fault;
	if (sscanf(text, "%d:%31[a-z_]:%d%1[+]=%31s", &fault.api, fault.call, &fault.nth, on,
			name) != 5 && sscanf(text, "%d:%31[a-z_]:%d=%31s", &fault.api, fault.call,
			&fault.nth, name) != 4)
		FAIL("not a fault: %s", text);
	fault.on = on[0] == '+';
	fault.error = error_of(name);
	return fault;
}

static const struct scenario *named(const struct scenario *scenarios, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(scenarios[i].name, name) == 0)
			return &scenarios[i];
	FAIL("no such scenario: %s", name);
}

static void run_cases_of_stdin(const struct scenario *scenarios, size_t n)
{
	char line[256];

	while (fgets(line, sizeof(line), stdin) != NULL) {
		char *name = strtok(line, "\t\n"), *text = strtok(NULL, "\t\n");
		struct fault fault;

		if (name == NULL || text == NULL)
			FAIL("not a case: %s", line);
		fault = parse(text);
		(here ? run_case : run_in_child)(named(scenarios, n, name), &fault);
		printf("== %s\t%s\n", name, text);
		fwrite(recorder_trace->text, 1, recorder_trace->length, stdout);
		/* What is written is not what a child is to write again. */
		fflush(stdout);
	}
}

static int run_scenarios(const struct scenario *scenarios, size_t n, int argc, char *argv[])
{
	static char buffer[1 << 20];
	const char *what = argc == 2 ? argv[1] : "";

	setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
	recorder_trace = mmap(NULL, sizeof(*recorder_trace), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (recorder_trace == MAP_FAILED)
		FAIL("no memory: %s", strerror(errno));
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_DEBUG);
	rpma_log_set_function(log_capture);
	here = strcmp(what, "here") == 0;
	if (here || strcmp(what, "run") == 0) {
		run_cases_of_stdin(scenarios, n);
	} else if (strcmp(what, "points") == 0) {
		for (size_t i = 0; i < n; i++)
			print_points(&scenarios[i]);
	} else {
		fprintf(stderr, "usage: %s points | run | here\n", argv[0]);
		return 2;
	}
	return 0;
}

#undef MAIN /* of common.h */
#define MAIN(scenarios) \
	int main(int argc, char *argv[]) \
	{ \
		return run_scenarios((scenarios), COUNT(scenarios), argc, argv); \
	}

#endif
