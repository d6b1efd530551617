/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process/supervise.h"
#include "../../support/child.h"
#include "../../support/wait.h"

#define MAX 4

/* Everything that was reported about the ranks of one test. */
struct world {
	struct supervise *supervise;
	size_t count;
	int started[MAX], ends[MAX];
	struct supervise_end end[MAX];
	char start_error[MAX][512];
	char *out[MAX][2]; /* text of stdout and stderr; '~' after pieces without newline */
	size_t size[MAX][2], room[MAX][2], lines;
	int finished;
	char left[512], notes[1024];
	void (*on_line)(struct world *world);
};

static struct loop *loop;
static const char *probe;
static pid_t started_pid; /* pid of the rank that was started last */
static char *environment[] = {(char *)"COLOUR=blue", (char *)"PATH=/usr/bin:/bin", NULL};

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void on_started(void *context, int local_rank, pid_t pid)
{
	struct world *world = context;

	assert_true(pid > 1);
	assert_false(world->ends[local_rank]);
	started_pid = pid;
	world->started[local_rank]++;
}

static void on_line(void *context, int local_rank, enum supervise_stream stream, const char *text,
		    size_t size, bool newline)
{
	struct world *world = context;
	char **out = &world->out[local_rank][stream == SUPERVISE_STDERR];
	size_t *used = &world->size[local_rank][stream == SUPERVISE_STDERR];
	size_t *room = &world->room[local_rank][stream == SUPERVISE_STDERR];

	if (*used + size + 2 > *room) {
		*room = 2 * (*used + size + 2);
		*out = realloc(*out, *room);
	}
	assert_non_null(*out);
	memcpy(*out + *used, text, size);
	*used += size;
	(*out)[(*used)++] = newline ? '\n' : '~';
	(*out)[*used] = '\0';
	world->lines++;
	if (world->on_line)
		world->on_line(world);
}

static void on_ended(void *context, const struct supervise_end *end)
{
	struct world *world = context;

	world->ends[end->local_rank]++;
	world->end[end->local_rank] = *end;
	if (end->start_error)
		snprintf(world->start_error[end->local_rank], sizeof *world->start_error, "%s",
			 end->start_error);
}

static void on_finished(void *context, const char *left)
{
	struct world *world = context;

	world->finished++;
	if (left)
		snprintf(world->left, sizeof world->left, "%s", left);
}

static void on_note(void *context, const char *text)
{
	struct world *world = context;
	size_t used = strlen(world->notes);

	snprintf(world->notes + used, sizeof world->notes - used, "%s\n", text);
}

static const char *const *spared;

static void begin(struct world *world, bool this_system)
{
	struct supervise_options options = {.this_system = this_system, .spared = spared};
	struct supervise_events events = {
		.context = world,
		.started = on_started,
		.line = on_line,
		.ended = on_ended,
		.finished = on_finished,
		.note = on_note,
	};
	struct error err = {0};

	memset(world, 0, sizeof *world);
	loop_free(loop); /* of the test before */
	if (loop_new(&loop, &err) ||
	    supervise_new(loop, &options, &events, &world->supervise, &err))
		fail_msg("%s", err.text);
}

static void launch(struct world *world, const struct supervise_rank *ranks, size_t count)
{
	struct error err = {0};

	world->count = count;
	if (supervise_start(world->supervise, ranks, count, &err))
		fail_msg("%s", err.text);
}

static struct supervise_rank make_rank(int local_rank, const char *const *argv)
{
	return (struct supervise_rank){
		.rank = 10 + local_rank, .argv = argv, .envp = environment, .stdin_fd = -1};
}

#define ARGV(...) ((const char *const[]){probe, __VA_ARGS__, NULL})

static void one(struct world *world, const char *const *argv)
{
	struct supervise_rank rank = make_rank(0, argv);

	begin(world, true);
	launch(world, &rank, 1);
}

static void on_nothing(struct loop_timer *timer)
{
	(void)timer;
}

/* One round of the loop, which waits for ms at most. */
static void run_for(int ms)
{
	struct loop_timer end = {.due = on_nothing};

	loop_timer_after(loop, &end, ms);
	assert_int_equal(loop_once(loop, NULL), 0);
	loop_timer_stop(&end);
}

/* Run the loop until *counter is at least value; the test fails after 30 s. */
static void until(struct world *world, const int *counter, int value)
{
	double deadline = seconds() + wait_ms(30000) / 1e3;

	while (*counter < value) {
		if (seconds() > deadline)
			fail_msg("nothing after 30 s; output '%s'",
				 world->out[0][0] ? world->out[0][0] : "");
		run_for(1000);
	}
}

static void until_text(struct world *world, int local_rank, const char *text)
{
	double deadline = seconds() + wait_ms(30000) / 1e3;

	while (!world->out[local_rank][0] || !strstr(world->out[local_rank][0], text)) {
		if (seconds() > deadline)
			fail_msg("no '%s' after 30 s", text);
		run_for(1000);
	}
}

/* Stop, and assert what supervise guarantees: no process, no zombie and no child is left. */
static void end(struct world *world, int grace_ms)
{
	supervise_stop(world->supervise, grace_ms);
	until(world, &world->finished, 1);
	assert_string_equal(world->left, "");
	assert_int_equal(supervise_running(world->supervise), 0);
	for (size_t i = 0; i < world->count; i++)
		assert_int_equal(world->ends[i], 1);
	supervise_free(world->supervise);
	assert_int_equal(waitpid(-1, NULL, WNOHANG | __WALL), -1);
	assert_int_equal(errno, ECHILD);
	for (size_t i = 0; i < MAX * 2; i++)
		free(world->out[i / 2][i % 2]);
}

/* ---- ends ---- */

static void test_exit_codes(void **state)
{
	static const struct {
		const char *mode, *number;
		int code, signal;
	} rows[] = {
		{"exit", "0", 0, 0},	  {"exit", "1", 1, 0},	  {"exit", "255", 255, 0},
		{"raise", "15", 143, 15}, {"raise", "9", 137, 9}, {"raise", "11", 139, 11},
		{"raise", "10", 138, 10},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct world world;

		one(&world, ARGV(rows[i].mode, rows[i].number));
		until(&world, &world.ends[0], 1);
		assert_int_equal(world.started[0], 1);
		assert_int_equal(world.end[0].code, rows[i].code);
		assert_int_equal(world.end[0].signal, rows[i].signal);
		assert_int_equal(world.end[0].rank, 10);
		assert_false(world.end[0].stopped_by_us);
		assert_null(world.end[0].start_error);
		assert_int_equal(world.end[0].oom, SUPERVISE_OOM_NO);
		assert_true(world.end[0].peak_memory_bytes > 100000);
		end(&world, 1000);
	}
}

static void test_cannot_start(void **state)
{
	static const struct {
		const char *program, *cwd, *status_text[2];
		int code;
	} rows[] = {
		{"/no/such/program", NULL, {"/no/such/program", "No such file"}, 127},
		{"no-such-program-anywhere", NULL, {"no-such-program-anywhere", "PATH"}, 127},
		{"/etc/passwd", NULL, {"/etc/passwd", "Permission denied"}, 126},
		{"/tmp", NULL, {"/tmp", "directory"}, 126},
		{"true", "/no/such/directory", {"/no/such/directory", "No such file"}, 126},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct world world;
		const char *argv[] = {rows[i].program, NULL};
		struct supervise_rank rank = make_rank(0, argv);

		rank.cwd = rows[i].cwd;
		begin(&world, true);
		launch(&world, &rank, 1);
		until(&world, &world.ends[0], 1);
		assert_int_equal(world.started[0], 0);
		assert_int_equal(world.end[0].code, rows[i].code);
		for (int k = 0; k < 2; k++)
			if (!strstr(world.start_error[0], rows[i].status_text[k]))
				fail_msg("'%s' lacks '%s'", world.start_error[0],
					 rows[i].status_text[k]);
		assert_memory_equal(world.start_error[0], "cannot start ", 13);
		end(&world, 1000);
	}
}

static void write_script(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void test_scripts_and_path(void **state)
{
	char dir[] = "/tmp/berth-test-supervise-XXXXXX", script[64], path[128];
	struct world world;

	assert_non_null(mkdtemp(dir));
	snprintf(script, sizeof script, "%s/run-me", dir);
	snprintf(path, sizeof path, "PATH=/no/such:%s:/usr/bin:/bin", dir);

	/* A script without a "#!" line runs in the shell, as with execvp. The rank's own PATH
	 * finds it, in the rank's directory. */
	write_script(script, "echo \"$0\" \"$1\" \"$PWD\"\n");

	char *envp[] = {path, NULL};
	const char *argv[] = {"run-me", "a b", NULL};
	struct supervise_rank rank = make_rank(0, argv);

	rank.envp = envp;
	rank.cwd = "/usr";
	begin(&world, true);
	launch(&world, &rank, 1);
	until(&world, &world.ends[0], 1);
	assert_int_equal(world.end[0].code, 0);
	assert_non_null(strstr(world.out[0][0], "run-me a b /usr\n"));
	end(&world, 1000);

	/* The interpreter is missing: the message must not claim that the script itself is
	 * missing. */
	write_script(script, "#!/no/such/interpreter\n");
	argv[0] = script;
	rank.cwd = NULL;
	begin(&world, true);
	launch(&world, &rank, 1);
	until(&world, &world.ends[0], 1);
	assert_non_null(strstr(world.start_error[0], "/no/such/interpreter, the interpreter"));
	end(&world, 1000);

	/* The same with a path relative to the rank's directory; and a directory is reported as
	 * such. */
	static const struct {
		const char *program, *said;
	} rows[] = {{"./run-me", "/no/such/interpreter, the interpreter"},
		    {"..", "it is a directory"}};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		argv[0] = rows[i].program;
		rank.cwd = dir;
		begin(&world, true);
		launch(&world, &rank, 1);
		until(&world, &world.ends[0], 1);
		assert_non_null(strstr(world.start_error[0], rows[i].said));
		end(&world, 1000);
	}
	unlink(script);
	rmdir(dir);
}

/* Some ranks start and one cannot: each end is reported for its own rank. */
static void test_one_cannot_start(void **state)
{
	struct world world;
	const char *bad[] = {"/no/such/program", NULL};
	struct supervise_rank ranks[3] = {make_rank(0, ARGV("stubborn")), make_rank(1, bad),
					  make_rank(2, ARGV("exit", "3"))};

	begin(&world, true);
	launch(&world, ranks, 3);
	until(&world, &world.ends[1], 1);
	until(&world, &world.ends[2], 1);
	until_text(&world, 0, "ready");
	assert_non_null(world.end[1].start_error);
	assert_int_equal(world.end[1].rank, 11);
	assert_int_equal(world.end[2].code, 3);
	assert_int_equal(supervise_running(world.supervise), 1);
	end(&world, 0);
	assert_true(world.end[0].stopped_by_us);
	assert_false(world.end[2].stopped_by_us);
}

/* ---- environment of a rank ---- */

static void test_inherits_nothing(void **state)
{
	struct world world;
	int leaks[3] = {open("/dev/null", O_RDONLY), dup2(0, 50), dup2(0, 900)};
	sigset_t set, before;

	/* The ranks inherit none of our descriptors without O_CLOEXEC, and neither a blocked nor
	 * an ignored signal. */
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, &before);
	signal(SIGUSR2, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);

	struct supervise_rank ranks[2] = {make_rank(0, ARGV("fds")), make_rank(1, ARGV("status"))};

	begin(&world, true);
	launch(&world, ranks, 2);
	until(&world, &world.ends[0], 1);
	until(&world, &world.ends[1], 1);
	assert_string_equal(world.out[0][0], "0\n1\n2\n");
	assert_non_null(strstr(world.out[1][0], "SigBlk:\t0000000000000000"));
	assert_non_null(strstr(world.out[1][0], "SigIgn:\t0000000000000000"));
	assert_non_null(strstr(world.out[1][0], "session 1 1"));
	end(&world, 1000);
	sigprocmask(SIG_SETMASK, &before, NULL);
	signal(SIGUSR2, SIG_DFL);
	for (int i = 0; i < 3; i++)
		close(leaks[i]);
}

static void test_stdin_cwd_env(void **state)
{
	struct world world;
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);

	struct supervise_rank ranks[3] = {make_rank(0, ARGV("cat")), make_rank(1, ARGV("cat")),
					  make_rank(2, ARGV("where"))};

	ranks[0].stdin_fd = ends[0];
	ranks[2].cwd = "/usr";
	begin(&world, true);
	launch(&world, ranks, 3);
	close(ends[0]);
	assert_int_equal(write(ends[1], "hello\n", 6), 6);
	close(ends[1]);
	for (int i = 0; i < 3; i++)
		until(&world, &world.ends[i], 1);
	assert_string_equal(world.out[0][0], "hello\n");
	assert_null(world.out[1][0]);
	assert_non_null(strstr(world.out[2][0], " /usr blue\n"));
	end(&world, 1000);
}

/* The agent may itself have been started without stdio. */
static void test_without_stdio(void **state)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct world world;
		struct supervise_rank rank = make_rank(0, ARGV("fds"));

		close(0);
		close(1);
		close(2);
		rank.stdin_fd = 0;
		begin(&world, true);
		launch(&world, &rank, 1);
		until(&world, &world.ends[0], 1);
		_exit(world.out[0][0] && !strcmp(world.out[0][0], "0\n1\n2\n") ? 0 : 1);
	}

	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* ---- binding ---- */

static const char *allowed_of(struct world *world, int local_rank)
{
	static char text[4][64];
	char *at = strstr(world->out[local_rank][0], "Cpus_allowed_list:\t");

	assert_non_null(at);
	snprintf(text[local_rank], sizeof *text, "%.*s", (int)strcspn(at + 19, "\n"), at + 19);
	return text[local_rank];
}

static int allowed_cpus(int *out, int max)
{
	cpu_set_t set;
	int count = 0;

	assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && count < max; cpu++)
		if (CPU_ISSET(cpu, &set))
			out[count++] = cpu;
	return count;
}

static void test_binding(void **state)
{
	struct world world;
	int cpus[2];
	cpu_set_t before, after;

	if (allowed_cpus(cpus, 2) < 2) {
		print_message("skipped: one CPU is allowed here, nothing to tell apart\n");
		skip();
	}

	struct supervise_rank ranks[3];
	struct idset *sets[2] = {idset_new(), idset_new()};
	char expected[16];

	const char *const *argv = ARGV("status");

	for (int i = 0; i < 3; i++)
		ranks[i] = make_rank(i, argv);
	for (int i = 0; i < 2; i++) {
		idset_add(sets[i], cpus[1 - i]);
		ranks[i].cpus_os = sets[i];
	}
	sched_getaffinity(0, sizeof before, &before);
	begin(&world, true);
	launch(&world, ranks, 3);
	sched_getaffinity(0, sizeof after, &after);
	assert_true(CPU_EQUAL(&before, &after));
	for (int i = 0; i < 3; i++)
		until(&world, &world.ends[i], 1);
	for (int i = 0; i < 2; i++) {
		snprintf(expected, sizeof expected, "%d", cpus[1 - i]);
		assert_string_equal(allowed_of(&world, i), expected);
	}
	/* Without a CPU set a rank keeps our binding. */
	assert_string_not_equal(allowed_of(&world, 2), allowed_of(&world, 0));
	assert_string_equal(world.notes, "");
	end(&world, 1000);
	for (int i = 0; i < 2; i++)
		idset_free(sets[i]);
}

static void test_binding_not_possible(void **state)
{
	struct world world;
	struct supervise_rank rank = make_rank(0, ARGV("status"));
	struct idset *set = idset_new();

	idset_add(set, 60000);
	rank.cpus_os = set;
	begin(&world, true);
	launch(&world, &rank, 1);
	until(&world, &world.ends[0], 1);
	assert_int_equal(world.end[0].code, 0);
	assert_non_null(strstr(world.notes, "rank 10 is not bound to CPUs 60000"));
	end(&world, 1000);
	idset_free(set);
}

/* A plan for another machine, and HWLOC_XMLFILE in our environment. */
static void test_spread(void **state)
{
	struct world world;
	int cpus[2], count = allowed_cpus(cpus, 2);
	struct supervise_rank ranks[2] = {make_rank(0, ARGV("status")),
					  make_rank(1, ARGV("status"))};
	struct idset *set = idset_new();

	idset_add(set, 60000);
	ranks[0].cpus_os = ranks[1].cpus_os = set;
	setenv("HWLOC_XMLFILE", "/no/such/file.xml", 1);
	begin(&world, false);
	launch(&world, ranks, 2);
	unsetenv("HWLOC_XMLFILE");
	until(&world, &world.ends[0], 1);
	until(&world, &world.ends[1], 1);
	assert_non_null(strstr(world.notes, "another machine"));
	if (count == 2)
		assert_string_not_equal(allowed_of(&world, 0), allowed_of(&world, 1));
	end(&world, 1000);
	idset_free(set);
}

/* ---- output ---- */

/* Each stream arrives complete and in order, and each line whole. */
static void expect_lines(const char *text, char letter, int count, int size)
{
	for (int i = 0; i < count; i++) {
		char head[32];
		int n = snprintf(head, sizeof head, "%c %d ", letter, i);

		assert_memory_equal(text, head, (size_t)n);
		assert_int_equal(strspn(text + n, "x"), size);
		text += n + size;
		assert_int_equal(*text++, '\n');
	}
	assert_int_equal(*text, '\0');
}

static void test_lines(void **state)
{
	struct world world;
	struct supervise_rank ranks[2] = {make_rank(0, ARGV("lines", "5000", "97")),
					  make_rank(1, ARGV("lines", "3000", "1"))};

	begin(&world, true);
	launch(&world, ranks, 2);
	until(&world, &world.ends[0], 1);
	until(&world, &world.ends[1], 1);
	expect_lines(world.out[0][0], 'o', 5000, 97);
	expect_lines(world.out[0][1], 'e', 5000, 97);
	expect_lines(world.out[1][0], 'o', 3000, 1);
	expect_lines(world.out[1][1], 'e', 3000, 1);
	end(&world, 1000);
}

static int paused;

static void pause_now(struct world *world)
{
	paused = 1;
	supervise_read(world->supervise, false);
}

/* A reader that stops: the rank blocks in its pipe and nothing is read; then everything arrives. */
static void test_slow_reader(void **state)
{
	struct world world;

	one(&world, ARGV("lines", "20000", "97"));
	until_text(&world, 0, "o 1 ");
	paused = 0;
	world.on_line = pause_now;
	until(&world, &paused, 1);

	size_t before = world.lines;

	for (int i = 0; i < 20; i++) {
		usleep(10000);
		run_for(0);
	}
	assert_int_equal(world.lines, before);
	assert_true(before < 40000);
	assert_int_equal(world.ends[0], 0);
	world.on_line = NULL;
	supervise_read(world.supervise, true);
	until(&world, &world.ends[0], 1);
	expect_lines(world.out[0][0], 'o', 20000, 97);
	expect_lines(world.out[0][1], 'e', 20000, 97);
	end(&world, 1000);
}

/* A rank that ended while reading was off: its last output arrives before its end is reported. */
static void test_end_while_paused(void **state)
{
	struct world world;
	struct supervise_rank rank = make_rank(0, ARGV("say", "last words"));

	begin(&world, true);
	launch(&world, &rank, 1);
	supervise_read(world.supervise, false);
	until(&world, &world.ends[0], 1);
	assert_string_equal(world.out[0][0], "last words~");
	end(&world, 1000);
}

/* ---- stopping ---- */

static bool alive(pid_t pid)
{
	return kill(pid, 0) == 0;
}

static pid_t daemon_pid(struct world *world)
{
	int pid;

	until_text(world, 0, "daemon ");
	until_text(world, 0, "\n");
	assert_int_equal(sscanf(strstr(world->out[0][0], "daemon "), "daemon %d", &pid), 1);
	return pid;
}

static void test_stubborn(void **state)
{
	struct world world;
	double begun;

	one(&world, ARGV("stubborn"));
	until_text(&world, 0, "ready");
	begun = seconds();
	end(&world, 300);
	assert_true(seconds() - begun >= 0.3);
	assert_int_equal(world.end[0].signal, SIGKILL);
	assert_true(world.end[0].stopped_by_us);
}

/* berth promises 5 s from a rank's failure, with the default grace period. */
static void test_stop_deadline(void **state)
{
	struct world world;
	struct supervise_rank ranks[3] = {make_rank(0, ARGV("stubborn")),
					  make_rank(1, ARGV("leaderless")),
					  make_rank(2, ARGV("stopped"))};
	double begun;

	begin(&world, true);
	launch(&world, ranks, 3);
	until_text(&world, 0, "ready");
	until_text(&world, 1, "thread");
	until_text(&world, 2, "ready");
	begun = seconds();
	end(&world, SUPERVISE_GRACE_MS);
	assert_true(seconds() - begun < 3 * 5.0);
	assert_true(SUPERVISE_GRACE_MS + SUPERVISE_KILL_MS < 5000);
	assert_int_equal(world.end[0].signal, SIGKILL);
	assert_int_equal(world.end[1].signal, SIGKILL);
	assert_int_equal(world.end[2].signal, SIGTERM);
}

static void test_term_is_enough(void **state)
{
	struct world world;

	one(&world, ARGV("signals"));
	until_text(&world, 0, "ready");
	supervise_signal(world.supervise, SIGUSR1);
	until_text(&world, 0, "signal 10");
	supervise_signal(world.supervise, SIGUSR2);
	until_text(&world, 0, "signal 12");
	end(&world, 20000);
	assert_int_equal(world.end[0].code, 7);
}

/* The process that holds the files of the others gets no stop signal, as it tells the program;
 * where it is alone, the program has not started yet, and it gets the signal. URG comes after TERM
 * in both senses: a shell handles the lower number first. */
static void test_spared(void **state)
{
	static const char *const names[] = {"holder", NULL};
	static const char holds[] =
		"#!/bin/sh\ntrap 'got=TERM' TERM\n"
		"trap 'echo \"<$got>\" >\"$1/part\"; mv \"$1/part\" \"$1/answer\"' URG\n"
		"echo held; while :; do sleep 0.05; done\n";
	static const char script[] =
		"trap 'kill -URG $!; until [ -e \"$0/answer\" ]; do sleep 0.05; done; "
		"cat \"$0/answer\"; exit 7' TERM\n"
		"\"$0/holder\" \"$0\" & while :; do sleep 0.05; done\n";
	static const char starts[] = "#!/bin/sh\ntrap : TERM\necho starting\n"
				     "until read -r _ <\"$2/answer\"; do :; done 2>/dev/null\n"
				     "\"$1\" signals\n";
	char dir[] = "/tmp/berth-test-supervise-XXXXXX", holder[64], answer[64];
	struct world world;
	int fd;

	assert_non_null(mkdtemp(dir));
	snprintf(holder, sizeof holder, "%s/holder", dir);
	snprintf(answer, sizeof answer, "%s/answer", dir);
	write_script(holder, holds);
	spared = names;
	one(&world, (const char *const[]){"/bin/sh", "-c", script, dir, NULL});
	until_text(&world, 0, "held");
	supervise_signal(world.supervise, SIGTERM);
	until(&world, &world.ends[0], 1);
	assert_int_equal(world.end[0].code, 7);
	assert_non_null(strstr(world.out[0][0], "<>"));
	end(&world, 20000);

	/* A shell would not do: the signal would reach the children of its loop only. */
	assert_int_equal(unlink(holder), 0);
	assert_int_equal(symlink(probe, holder), 0);
	one(&world, (const char *const[]){holder, "signals", NULL});
	until_text(&world, 0, "ready");
	supervise_signal(world.supervise, SIGTERM);
	until(&world, &world.ends[0], 1);
	assert_int_equal(world.end[0].code, 7);
	end(&world, 20000);

	/* The program starts after the signal, of which what starts it makes nothing. As anywhere,
	 * it may come before the program is ready for it. */
	assert_int_equal(unlink(holder), 0);
	unlink(answer);
	assert_int_equal(mkfifo(answer, 0600), 0);
	write_script(holder, starts);
	one(&world, (const char *const[]){holder, probe, dir, NULL});
	until_text(&world, 0, "starting");
	supervise_signal(world.supervise, SIGTERM);
	fd = open(answer, O_WRONLY);
	assert_int_equal(write(fd, "\n", 1), 1);
	close(fd);
	until(&world, &world.ends[0], 1);
	assert_true(world.end[0].code == 7 || world.end[0].code == 128 + SIGTERM);
	end(&world, 20000);
	spared = NULL;
	unlink(answer);
	unlink(holder);
	rmdir(dir);
}

static void test_daemon(void **state)
{
	static const char *const modes[] = {"0", "1"};

	for (int i = 0; i < 2; i++) {
		struct world world;
		pid_t pid;

		one(&world, ARGV("daemon", modes[i]));
		pid = daemon_pid(&world);
		if (i == 0) {
			/* Its end is reported although the daemon keeps its stdout open. */
			until(&world, &world.ends[0], 1);
			assert_int_equal(world.end[0].code, 0);
		}
		assert_true(alive(pid));
		end(&world, 200);
		assert_false(alive(pid));
	}
}

static void test_hopping(void **state)
{
	struct world world;

	one(&world, ARGV("hop", "0"));
	until_text(&world, 0, "ready");
	until(&world, &world.ends[0], 1);
	end(&world, 100);
}

/* Count our children, or those that are zombies. */
static int count_children(bool zombies)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	int count = 0;

	while ((entry = readdir(proc))) {
		char path[300], state_letter;
		int pid = atoi(entry->d_name), parent;
		FILE *file;

		snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
		if (pid <= 0 || !(file = fopen(path, "r")))
			continue;
		if (fscanf(file, "%*d (%*[^)]) %c %d", &state_letter, &parent) == 2)
			count += parent == getpid() && (!zombies || state_letter == 'Z');
		fclose(file);
	}
	closedir(proc);
	return count;
}

/* Orphans of a running rank are adopted and reaped while the job runs. */
static void test_orphans_are_reaped(void **state)
{
	struct world world;
	double deadline = seconds() + wait_ms(30000) / 1e3;

	one(&world, ARGV("orphans", "20"));
	until_text(&world, 0, "ready");
	while (count_children(false) > 1 && seconds() < deadline) {
		run_for(20);
	}
	assert_int_equal(count_children(false), 1); /* the rank */
	end(&world, 0);
}

static int open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* Start one rank with fewer and fewer descriptors. Each failure names the limit, also that of a
 * rank which has been forked already. Return a bit for each kind of failure that was seen. */
static int start_with_few_descriptors(void)
{
	static const char *const kinds[] = {"cannot watch its descriptors", "pipe"};
	struct supervise_options options = {.this_system = true};
	struct supervise_events events = {0};
	struct supervise_rank rank = make_rank(0, ARGV("exit", "0"));
	int seen = 0;

	for (rlim_t limit = 40; seen != 3 && limit > 8; limit--) {
		struct supervise *supervise;
		struct error err;

		if (loop_new(&loop, &err) ||
		    supervise_new(loop, &options, &events, &supervise, &err) ||
		    setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit}))
			return 4;
		if (supervise_start(supervise, &rank, 1, &err)) {
			if (!strstr(err.text, "(check the open file limit: ulimit -n)"))
				return 5;
			for (int i = 0; i < 2; i++)
				seen |= strstr(err.text, kinds[i]) ? 1 << i : 0;
		}
		supervise_free(supervise);
		loop_free(loop);
	}
	return seen;
}

static void test_few_descriptors(void **state)
{
	pid_t child = fork(); /* the limit cannot be raised again */
	int status;

	if (!child)
		_exit(start_with_few_descriptors());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 3);
}

static void test_200_cycles(void **state)
{
	int before = open_fds();

	for (int i = 0; i < 200; i++) {
		struct world world;
		const char *bad[] = {"/no/such/program", NULL};
		struct supervise_rank ranks[2] = {
			make_rank(0, i % 3 ? ARGV("stubborn") : ARGV("exit", "0")),
			make_rank(1, i % 5 ? ARGV("say", "x") : bad),
		};

		begin(&world, true);
		launch(&world, ranks, 2);
		if (i % 2)
			until(&world, &world.ends[1], 1);
		end(&world, 0); /* asserts that no child and no zombie is left */
	}
	assert_int_equal(open_fds(), before);
	assert_int_equal(count_children(true), 0);
}

/* A child of the caller itself is left alone: it survives the SIGTERM and SIGKILL sent to the
 * rest, and the caller reaps it. Without it nothing is left. */
static void test_keep(void **state)
{
	struct supervise_options options = {.this_system = true};
	struct supervise_events events = {
		.ended = on_ended, .finished = on_finished, .line = on_line};
	struct supervise_rank rank = make_rank(0, ARGV("stubborn"));
	struct world world = {0};
	struct error err = {0};
	int status;

	options.exempt_pid = fork();
	if (options.exempt_pid == 0)
		for (;;)
			pause();
	events.context = &world;
	loop_free(loop);
	assert_int_equal(loop_new(&loop, &err), 0);
	assert_int_equal(supervise_new(loop, &options, &events, &world.supervise, &err), 0);
	launch(&world, &rank, 1);
	until_text(&world, 0, "ready");
	supervise_stop(world.supervise, 100);
	until(&world, &world.ends[0], 1);
	assert_int_equal(world.finished, 0);
	assert_int_equal(waitpid(options.exempt_pid, NULL, WNOHANG), 0);
	kill(options.exempt_pid, SIGTERM);
	assert_int_equal(waitpid(options.exempt_pid, &status, 0), options.exempt_pid);
	assert_int_equal(WTERMSIG(status), SIGTERM);
	end(&world, 0);
}

/* supervise is freed while ranks run. */
static void test_free_kills(void **state)
{
	struct world world;
	pid_t pid;

	one(&world, ARGV("daemon", "1"));
	pid = daemon_pid(&world);
	supervise_free(world.supervise);
	assert_false(alive(pid));
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	free(world.out[0][0]);
}

static void *spin(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
		free(malloc(100));
	return NULL;
}

/* Other threads hold malloc's locks all the time: a child that allocates memory would hang. */
static void test_fork_beside_threads(void **state)
{
	pthread_t thread;
	int stop = 0;

	assert_int_equal(pthread_create(&thread, NULL, spin, &stop), 0);
	for (int i = 0; i < 50; i++) {
		struct world world;

		one(&world, ARGV("exit", "5"));
		until(&world, &world.ends[0], 1);
		assert_int_equal(world.end[0].code, 5);
		end(&world, 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}

/* ---- without us ---- */

/* The agent is killed: its rank dies at once (PDEATHSIG), and the process that adopts the rest
 * ends it. */
static void test_agent_killed(void **state)
{
	int ends[2], rank_pid, daemon, status;
	char text[64] = "";
	struct error err = {0};

	assert_int_equal(supervise_become_subreaper(&err), 0);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);

	pid_t agent = fork();

	if (agent == 0) {
		struct world world;
		int n;

		one(&world, ARGV("daemon", "1"));
		until(&world, &world.started[0], 1);
		daemon = daemon_pid(&world);
		rank_pid = started_pid;
		n = snprintf(text, sizeof text, "%d %d\n", rank_pid, daemon);
		if (write(ends[1], text, (size_t)n) != n)
			_exit(FAILED_HERE(1));
		for (;;)
			pause();
	}
	assert_true(read(ends[0], text, sizeof text - 1) > 0);
	assert_int_equal(sscanf(text, "%d %d", &rank_pid, &daemon), 2);
	assert_true(alive(daemon));
	kill(agent, SIGKILL);
	waitpid(agent, NULL, 0);
	assert_true(alive(daemon));
	assert_int_equal(waitpid(rank_pid, &status, 0), rank_pid);
	assert_int_equal(WTERMSIG(status), SIGKILL);

	char left[256];

	assert_int_equal(supervise_kill_descendants(NULL, 0, 5000, left, sizeof left), 0);
	assert_string_equal(left, "");
	assert_false(alive(daemon));
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	close(ends[0]);
	close(ends[1]);
}

/* Processes in except, and their children, survive. */
static void test_kill_but_not_all(void **state)
{
	pid_t pids[2];

	for (int i = 0; i < 2; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			if (fork() == 0)
				execl(probe, probe, "stubborn", NULL);
			execl(probe, probe, "stubborn", NULL);
			_exit(FAILED_HERE(1));
		}
	}
	usleep(100000);
	assert_int_equal(supervise_kill_descendants(pids, 1, 5000, NULL, 0), 0);
	assert_int_equal(waitpid(pids[1], NULL, WNOHANG), -1);
	assert_int_equal(waitpid(pids[0], NULL, WNOHANG), 0);
	assert_int_equal(supervise_kill_descendants(NULL, 0, 5000, NULL, 0), 0);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exit_codes),
		cmocka_unit_test(test_cannot_start),
		cmocka_unit_test(test_scripts_and_path),
		cmocka_unit_test(test_one_cannot_start),
		cmocka_unit_test(test_inherits_nothing),
		cmocka_unit_test(test_stdin_cwd_env),
		cmocka_unit_test(test_without_stdio),
		cmocka_unit_test(test_binding),
		cmocka_unit_test(test_binding_not_possible),
		cmocka_unit_test(test_spread),
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_end_while_paused),
		cmocka_unit_test(test_stubborn),
		cmocka_unit_test(test_stop_deadline),
		cmocka_unit_test(test_term_is_enough),
		cmocka_unit_test(test_spared),
		cmocka_unit_test(test_daemon),
		cmocka_unit_test(test_hopping),
		cmocka_unit_test(test_orphans_are_reaped),
		cmocka_unit_test(test_few_descriptors),
		cmocka_unit_test(test_200_cycles),
		cmocka_unit_test(test_keep),
		cmocka_unit_test(test_free_kills),
		cmocka_unit_test(test_fork_beside_threads),
		cmocka_unit_test(test_agent_killed),
		cmocka_unit_test(test_kill_but_not_all),
	};

	/* A rank may start in another directory. */
	probe = getenv("PROBE") ? realpath(getenv("PROBE"), NULL) : NULL;
	if (!probe) {
		fprintf(stderr, "PROBE must name the probe program (meson test sets it)\n");
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
