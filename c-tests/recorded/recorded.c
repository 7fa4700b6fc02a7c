/*
 * recorded.c -- runs scenarios.
 *
 *   recorded points    runs each scenario as it is and prints all that could have failed
 *   recorded run       runs the cases that stdin lists: SCENARIO, a tab, `clean` or a fault, which
 *                      is API:CALL:NTH=ERRNO, or with += what can fail after that fails too
 *   recorded here      the same without a process for each, for valgrind
 */
#include "recorded.h"

#include <netdb.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

/* The processor time of a case, many times what it takes: more means that it goes round in a circle. */
#define LIMIT_CPU_S 3
/* A case that waits for ever takes no processor time. No busy machine makes a case take so long. */
#define LIMIT_S 600

/* That many cases that are over a limit are enough to see that something is wrong. */
#define TIMEOUTS 3

const struct scenario *scenario;
struct in in;
unsigned char memory[8192] __attribute__((aligned(4096)));

static bool here; /* all in this process */

void enter(bool written)
{
	before();
	recorder_enter(written);
	errno = 0;
}

int leave(const char *call, int ret)
{
	int error = errno;
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
	if (ret != 0)
		recorder_line("    errno %s", error == 0 ? "0" : strerrorname_np(error));
	/* Which lines show it at all is each library's own. */
	if (strncmp(call, "rpma_read(", 10) == 0 && strstr(log_text(), "9abcdef0") != NULL)
		recorder_line("    context %s in the log", strstr(log_text(), "123456789abcdef0") != NULL ?
				"whole" : "cut");
	return ret;
}

bool needed(const char *call, int ret)
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
	static int timeouts;
	struct recorder_trace *trace = recorder_trace;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		static const struct itimerval cpu = {.it_value.tv_sec = LIMIT_CPU_S};

		setitimer(ITIMER_PROF, &cpu, NULL);
		alarm(LIMIT_S);
		run_case(s, fault);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		FAIL("no child process: %s", strerror(errno));
	if (WIFSIGNALED(status))
		trace->length += (size_t)sprintf(trace->text + trace->length, "killed by SIG%s\n",
				sigabbrev_np(WTERMSIG(status)));
	if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGPROF) &&
			++timeouts == TIMEOUTS)
		FAIL("case %d that takes %d s of processor time, or %d s: %s\n%.*s", timeouts,
				LIMIT_CPU_S, LIMIT_S, s->name, (int)trace->length, trace->text);
}

static void run_here(const struct scenario *s, const struct fault *fault)
{
	alarm(LIMIT_S);
	run_case(s, fault);
	alarm(0);
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

static const struct scenario *named(const char *name)
{
	for (const struct scenario *s = scenarios; s->name != NULL; s++)
		if (strcmp(s->name, name) == 0)
			return s;
	FAIL("no such scenario: %s", name);
}

static void run_cases_of_stdin(void)
{
	char line[256];

	while (fgets(line, sizeof(line), stdin) != NULL) {
		char *name = strtok(line, "\t\n"), *text = strtok(NULL, "\t\n");
		struct fault fault;

		if (name == NULL || text == NULL)
			FAIL("not a case: %s", line);
		fault = parse(text);
		printf("== %s\t%s\n", name, text);
		/* Whoever waits may see which case it is that does not end. */
		fflush(stdout);
		(here ? run_here : run_in_child)(named(name), &fault);
		fwrite(recorder_trace->text, 1, recorder_trace->length, stdout);
		/* What is written is not what a child is to write again. */
		fflush(stdout);
	}
}

int main(int argc, char *argv[])
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
		run_cases_of_stdin();
	} else if (strcmp(what, "points") == 0) {
		for (const struct scenario *s = scenarios; s->name != NULL; s++)
			print_points(s);
	} else {
		fprintf(stderr, "usage: %s points | run | here\n", argv[0]);
		return 2;
	}
	return 0;
}
