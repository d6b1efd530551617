/* SPDX-License-Identifier: BSD-3-Clause */
/* The lease of a checkpoint directory: cases that a test of the command line could show only by
 * waiting for minutes, lost replies, and contention. */
#include "../rows.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "train/checkpoint/lease.h"
#include "train/checkpoint/lease_state.h"
#include "../../support/child.h"
#include "../../support/wait.h"

/* For what must happen. */
#define LIMIT_MS wait_ms(30000)

/* ---- faults ---- */

static enum { NO_FAULT, LINK_REPLY_LOST, NO_LINKS, LATE_LINK, NO_PROC } fault;

int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to)
{
	if (fault == NO_LINKS) {
		errno = EPERM;
		return -1;
	}
	/* Long enough for others to take numbers after this process has listed them. */
	if (fault == LATE_LINK)
		usleep(rand() % 20 ? (useconds_t)rand() % 500 : 30000);

	int rc = __real_link(from, to);

	if (fault != LINK_REPLY_LOST || rc)
		return rc;
	errno = EEXIST;
	return -1;
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode)
{
	if (fault == NO_PROC && !strncmp(path, "/proc/", 6) && strstr(path, "/stat")) {
		errno = EMFILE;
		return -1;
	}
	return __real_open64(path, flags, mode);
}

/* ---- the rig ---- */

struct rig {
	char directory[32], file[48], run[LEASE_RUN_BYTES];
	struct lease_identity self;
	struct lease_request request;
};

static void rig_begin(struct rig *rig)
{
	*rig = (struct rig){.directory = "/tmp/berth-lease-XXXXXX",
			    .self = {.scheduler = "", .job = "mine", .predecessors = ""}};
	assert_non_null(mkdtemp(rig->directory));
	snprintf(rig->file, sizeof rig->file, "%s/.lease-000041", rig->directory);
	lease_new_run(rig->run);
	rig->request = (struct lease_request){
		.directory = rig->directory, .self = &rig->self, .run = rig->run, .watch_ms = 600};
	fault = NO_FAULT;
}

static void rig_end(struct rig *rig)
{
	char command[128];

	/* There must be nothing but leases. */
	snprintf(command, sizeof command, "rm -f %s/.lease-[0-9]*[0-9] && rmdir %s", rig->directory,
		 rig->directory);
	assert_int_equal(system(command), 0);
}

/* Each attempt is another run's. */
static int acquire(struct rig *rig, struct lease **lease, struct error *err)
{
	lease_new_run(rig->run);
	*lease = NULL;
	return lease_acquire(&rig->request, lease, err);
}

static void write_lease(const struct rig *rig, const struct lease_record *record, int age_s)
{
	char *text = lease_record_text(record);
	struct timespec times[2] = {{0}, {0}};
	struct error err = {0};
	char new[128];

	/* Nobody may see the file before it has its age. */
	snprintf(new, sizeof new, "%s/aged", rig->directory);
	assert_int_equal(file_write_atomic(new, text, strlen(text), 0666, &err), 0);
	free(text);
	clock_gettime(CLOCK_REALTIME, &times[1]);
	times[1].tv_sec -= age_s;
	times[0] = times[1];
	assert_int_equal(utimensat(AT_FDCWD, new, times, 0), 0);
	assert_int_equal(rename(new, rig->file), 0);
}

/* Write a lease as a job on another machine would have left it age_s ago. */
static void claim(const struct rig *rig, int age_s)
{
	write_lease(rig,
		    &(struct lease_record){
			    .job = "theirs", .host = "far", .boot = "b", .pid = 7, .token = "t.0"},
		    age_s);
}

/* ---- who may take it ---- */

/* The order of what is known: this machine, the job's identity, its scheduler, the date. */
static void states(void **state)
{
	static const struct lease_identity self = {
		.scheduler = "slurm", .job = "8", .predecessors = "5, 7", .attempt = 1};
	static const struct {
		struct lease_record record;
		int ended; /* -2: not asked yet */
		double age_s;
		enum lease_state state;
		const char *stale, *alive;
	} rows[] = {
		{{.released = true, .boot = "here"}, .state = LEASE_RELEASED},
		{{.boot = "here", .scheduler = "slurm", .job = "9"},
		 .state = LEASE_HERE,
		 .alive = "that process is running"},
		{{.boot = "here", .scheduler = "slurm", .job = "8"},
		 .state = LEASE_HERE_SAME_JOB,
		 .alive = "that process is running"},
		{{.boot = "far", .scheduler = "slurm", .job = "7"}, .state = LEASE_PREDECESSOR},
		{{.scheduler = "slurm", .job = "8"}, .state = LEASE_PREDECESSOR},
		{{.scheduler = "slurm", .job = "8", .attempt = 1},
		 .state = LEASE_SAME_JOB,
		 .alive = "its lease is being renewed, so another run of the same job is alive"},
		{{.scheduler = "pbs", .job = "8"}, -2, .state = LEASE_NEEDS_SCHEDULER},
		{{.scheduler = "slurm", .job = "9"}, -2, .state = LEASE_NEEDS_SCHEDULER},
		{{.scheduler = "slurm", .job = "9"},
		 1,
		 .state = LEASE_JOB_ENDED,
		 .stale = "slurm reports that the job has ended"},
		{{.scheduler = "slurm", .job = "9"},
		 0,
		 .state = LEASE_JOB_LISTED,
		 .alive = "its scheduler still lists that job"},
		{{.job = "9"}, -1, -1, LEASE_NEEDS_AGE},
		{{.job = "9"},
		 -1,
		 601,
		 LEASE_EXPIRED,
		 "its lease has not been renewed for 601 s",
		 "its lease is being renewed, so that run is alive"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct lease_facts facts = {.record = &rows[i].record,
					    .self = &self,
					    .boot = "here",
					    .has_asked = rows[i].ended != -2,
					    .ended = rows[i].ended,
					    .has_age = rows[i].age_s >= 0,
					    .age_s = rows[i].age_s};
		enum lease_state found = lease_state_of(&facts);
		char text[200];

		if (found != rows[i].state)
			fail_msg("row %zu: state %d", i, found);
		if (rows[i].stale) {
			lease_state_text(&facts, found, true, text, sizeof text);
			assert_string_equal(text, rows[i].stale);
		}
		if (rows[i].alive) {
			lease_state_text(&facts, found, false, text, sizeof text);
			assert_string_equal(text, rows[i].alive);
		}
		facts.take_over = true;
		assert_int_equal(lease_state_of(&facts),
				 rows[i].record.released ? LEASE_RELEASED : LEASE_FORCED);
	}
}

static void ages(void **state)
{
	static const struct {
		int age_s, rc;
		const char *word;
	} rows[] = {
		{0, -ERR_OUTPUT, "expires 600 s after"},
		{590, -ERR_OUTPUT, "renewed 59"},
		{601, 0, NULL},
		{864000, 0, NULL},
		{-30, -ERR_OUTPUT, "renewed 0 s ago"}, /* clocks differ a little */
		{-7200, -ERR_OUTPUT, "in the future"},
	};
	struct rig rig;

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct lease *lease;
		struct error err = {0};

		rig_begin(&rig);
		claim(&rig, rows[i].age_s);
		int rc = acquire(&rig, &lease, &err);

		if (rc != rows[i].rc || (rc && !strstr(err.text, rows[i].word)))
			fail_msg("%d s: %d %s", rows[i].age_s, rc, err.text);
		assert_true(lease_release(lease, LIMIT_MS));
		rig_end(&rig);
	}
}

static atomic_int stop;

static void *renew_theirs(void *argument)
{
	while (!stop) {
		claim(argument, 900);
		usleep(100000);
	}
	return NULL;
}

/* If a clock jumped, the lease of a live run may look old, but the run is seen renewing it. */
static void who_renews_lives(void **state)
{
	struct lease *lease;
	struct error err = {0};
	pthread_t thread;
	struct rig rig;

	rig_begin(&rig);
	claim(&rig, 900);
	rig.request.watch_ms = LIMIT_MS; /* it ends at the first renewal */
	stop = 0;
	assert_int_equal(pthread_create(&thread, NULL, renew_theirs, &rig), 0);
	int rc = acquire(&rig, &lease, &err);

	stop = 1;
	pthread_join(thread, NULL);
	if (rc != -ERR_OUTPUT || !strstr(err.text, "that run is alive"))
		fail_msg("%d %s", rc, err.text);
	rig_end(&rig);
}

/* The same job on another machine: a later attempt takes over at once; the same attempt takes over
 * only if the lease is not renewed. */
static void same_job(void **state)
{
	static const struct {
		int attempt;
		bool renews;
		int rc;
	} rows[] = {{1, true, 0}, {0, true, -ERR_OUTPUT}, {0, false, 0}};
	struct rig rig;

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct lease *lease;
		struct error err = {0};
		pthread_t thread;

		rig_begin(&rig);
		rig.self.job = "theirs";
		rig.self.attempt = rows[i].attempt;
		claim(&rig, 0);
		stop = 0;
		if (rows[i].renews)
			rig.request.watch_ms = LIMIT_MS; /* it ends at the first renewal */
		if (rows[i].renews && rows[i].rc)
			assert_int_equal(pthread_create(&thread, NULL, renew_theirs, &rig), 0);
		int rc = acquire(&rig, &lease, &err);

		stop = 1;
		if (rows[i].renews && rows[i].rc)
			pthread_join(thread, NULL);
		if (rc != rows[i].rc || (rc && !strstr(err.text, "of the same job is alive")))
			fail_msg("row %zu: %d %s", i, rc, err.text);
		assert_true(lease_release(lease, LIMIT_MS));
		rig_end(&rig);
	}
}

/* A waiting run can be cancelled, because the other ranks may have ended. */
static void gives_up(void **state)
{
	static const atomic_bool yes = true;
	struct lease *lease;
	struct error err = {0};
	struct timespec begin, end;
	struct rig rig;

	rig_begin(&rig);
	rig.request.watch_ms = 100000;
	rig.request.cancel = &yes;
	claim(&rig, 900);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	assert_int_equal(acquire(&rig, &lease, &err), -ERR_OUTPUT);
	clock_gettime(CLOCK_MONOTONIC, &end);
	assert_true(end.tv_sec - begin.tv_sec < 50);
	rig_end(&rig);
}

/* ---- files that hold no lease ---- */

/* A lease that cannot be read is somebody's; a FIFO does not block. */
static void damaged(void **state)
{
	static const char *const texts[] = {"",
					    "{\"held\": 1",
					    "[]",
					    "{\"held\": 0, \"format\": \"berth.lease/1\"}",
					    "{\"held\": \"0\", \"token\": \"x\"}",
					    NULL /* a FIFO */};
	struct rig rig;

	for (size_t i = 0; i < ROWS(texts); i++) {
		struct lease *lease;
		struct error err = {0};

		rig_begin(&rig);
		if (texts[i])
			assert_int_equal(
				file_write_atomic(rig.file, texts[i], strlen(texts[i]), 0666, &err),
				0);
		else
			assert_int_equal(mkfifo(rig.file, 0666), 0);
		assert_int_equal(acquire(&rig, &lease, &err), -ERR_OUTPUT);
		if (!strstr(err.text, "an unknown run (its lease file cannot be read)"))
			fail_msg("row %zu: %s", i, err.text);
		rig.request.take_over = true;
		assert_int_equal(acquire(&rig, &lease, &err), 0);
		assert_true(lease_release(lease, LIMIT_MS));
		rig_end(&rig);
	}
}

/* ---- keeping it ---- */

static void path_of(const struct rig *rig, int number, char path[64])
{
	snprintf(path, 64, "%s/.lease-%06d", rig->directory, number);
}

/* Numbers grow; a release keeps the file; old files go. */
static void numbers(void **state)
{
	struct lease *lease;
	struct error err = {0};
	struct rig rig;
	char path[64];

	rig_begin(&rig);
	for (int number = 1; number <= 5; number++) {
		assert_int_equal(acquire(&rig, &lease, &err), 0);
		assert_int_equal(lease_check(lease, &err), 0);
		assert_true(lease_release(lease, LIMIT_MS));
		for (int i = 1; i <= 6; i++) {
			path_of(&rig, i, path);
			assert_int_equal(!access(path, F_OK), i <= number && i >= number - 2);
		}
	}
	rig_end(&rig);
}

/* The date changes, the file does not: another run's file is never replaced. */
static void renewed(void **state)
{
	struct lease *lease;
	struct error err = {0};
	struct stat before, after;
	struct rig rig;
	char path[64];

	rig_begin(&rig);
	rig.request.period_ms = 20;
	assert_int_equal(acquire(&rig, &lease, &err), 0);
	path_of(&rig, 1, path);
	assert_int_equal(stat(path, &before), 0);
	for (int i = 0; i < LIMIT_MS / 10; i++) {
		assert_int_equal(stat(path, &after), 0);
		if (after.st_mtim.tv_nsec != before.st_mtim.tv_nsec)
			break;
		usleep(10000);
	}
	assert_int_not_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
	assert_int_equal(before.st_ino, after.st_ino);
	claim(&rig, 0);
	/* The thread finds it by itself. */
	for (int i = 0; i < LIMIT_MS / 10 && !lease_lost(lease, &err); i++)
		usleep(10000);
	assert_int_equal(lease_lost(lease, &err), -ERR_OUTPUT);
	assert_non_null(strstr(err.text, "was taken over by job theirs, process 7 on far"));
	assert_int_equal(lease_check(lease, &err), -ERR_OUTPUT);
	assert_true(lease_release(lease, LIMIT_MS));
	rig_end(&rig);
}

/* A run that took over and ended: the directory is lost all the same. So it is if somebody removes
 * the file. */
static void taken_and_ended(void **state)
{
	struct lease *lease, *taker;
	struct error err = {0};
	struct rig rig;
	char path[64];

	for (int removed = 0; removed < 2; removed++) {
		rig_begin(&rig);
		assert_int_equal(acquire(&rig, &lease, &err), 0);
		rig.request.take_over = true;
		path_of(&rig, 1, path);
		if (removed) {
			assert_int_equal(unlink(path), 0);
		} else {
			assert_int_equal(acquire(&rig, &taker, &err), 0);
			assert_true(lease_release(taker, LIMIT_MS));
		}
		for (int i = 0; i < 2; i++) {
			assert_int_equal(lease_check(lease, &err), -ERR_OUTPUT);
			assert_non_null(
				strstr(err.text, removed ? "is missing" : "was taken over by"));
		}
		assert_true(lease_release(lease, LIMIT_MS));
		rig_end(&rig);
	}
}

/* Ranks of one run: one has the lease, and the others learn that it is shared. */
static void shared(void **state)
{
	struct lease *lease, *other;
	struct error err = {0};
	struct rig rig;

	rig_begin(&rig);
	assert_int_equal(acquire(&rig, &lease, &err), 0);
	rig.request.rank = 1;
	assert_int_equal(lease_acquire(&rig.request, &other, &err), 0);
	assert_non_null(lease);
	assert_null(other);
	assert_int_equal(lease_check(lease, &err), 0);
	assert_true(lease_release(lease, LIMIT_MS));
	rig_end(&rig);
}

/* ---- faults of file systems and of this machine ---- */

/* A lost reply to a link, and a file system without links: the first run gets the lease, and the
 * second does not. */
static void links(void **state)
{
	struct lease *lease, *other;
	struct error err = {0};
	struct rig rig;

	for (int kind = LINK_REPLY_LOST; kind <= NO_LINKS; kind++) {
		rig_begin(&rig);
		fault = kind;
		if (acquire(&rig, &lease, &err))
			fail_msg("%d: %s", kind, err.text);
		assert_int_equal(lease_check(lease, &err), 0);
		rig.self.job = "";
		assert_int_equal(acquire(&rig, &other, &err), -ERR_OUTPUT);
		assert_non_null(strstr(err.text, "that process is running"));
		assert_true(lease_release(lease, LIMIT_MS));
		assert_int_equal(acquire(&rig, &other, &err), 0);
		assert_true(lease_release(other, LIMIT_MS));
		rig_end(&rig);
	}
}

/* Without a free descriptor /proc says nothing about a process: it counts as alive. */
static void unreadable_proc(void **state)
{
	struct lease_record record = {.token = "t.0"};
	struct lease *lease;
	struct error err = {0};
	struct rig rig;

	rig_begin(&rig);
	lease_record_set_process(&record);
	write_lease(&rig, &record, 0);
	fault = NO_PROC;
	assert_int_equal(acquire(&rig, &lease, &err), -ERR_OUTPUT);
	assert_non_null(strstr(err.text, "that process is running"));
	rig_end(&rig);
}

/* ---- contention ---- */

#define WORKERS 8
static struct scores {
	atomic_int holders, takes, doubles, refused;
} * scores;

/* Take the lease once, in a process of its own, which every second time is killed. */
static _Noreturn void take_once(struct rig *rig, int seed)
{
	struct lease *lease;
	struct error err = {0};

	srand((unsigned)seed);
	while (acquire(rig, &lease, &err)) {
		if (!strstr(err.text, "that process is running") &&
		    !strstr(err.text, "other runs keep taking")) {
			fprintf(stderr, "%s\n", err.text);
			_exit(FAILED_HERE(1));
		}
		scores->refused++;
		usleep((useconds_t)rand() % 2000);
	}
	if (scores->holders++)
		scores->doubles++;
	usleep((useconds_t)rand() % 300);
	if (lease_check(lease, &err))
		scores->doubles++;
	scores->takes++;
	scores->holders--;
	if (rand() % 2)
		raise(SIGKILL);
	_exit(!lease_release(lease, LIMIT_MS));
}

static void contention(void **state)
{
	const char *wanted = getenv("BERTH_TEST_TAKES");
	int takes = wanted ? atoi(wanted) : 400, status;
	pid_t workers[WORKERS];
	struct rig rig;

	rig_begin(&rig);
	rig.self.job = "";
	fault = LATE_LINK;
	scores = mmap(NULL, sizeof *scores, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	assert_true(scores != MAP_FAILED);
	for (int w = 0; w < WORKERS; w++) {
		workers[w] = fork();
		for (int i = 0; !workers[w]; i++) {
			if (scores->takes >= takes)
				_exit(0);
			pid_t taker = fork();

			if (!taker)
				take_once(&rig, i * WORKERS + w);
			if (waitpid(taker, &status, 0) != taker || (status && status != SIGKILL))
				_exit(FAILED_HERE(1));
		}
	}
	for (int w = 0; w < WORKERS; w++) {
		assert_int_equal(waitpid(workers[w], &status, 0), workers[w]);
		assert_int_equal(status, 0);
	}
	print_message("%d takes, %d refused, %d double\n", scores->takes, scores->refused,
		      scores->doubles);
	assert_int_equal(scores->doubles, 0);
	munmap(scores, sizeof *scores);
	char command[80];

	/* Takers that died before their link left theirs. */
	snprintf(command, sizeof command, "rm -f %s/.lease.*", rig.directory);
	assert_int_equal(system(command), 0);
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(states),
		cmocka_unit_test(ages),
		cmocka_unit_test(who_renews_lives),
		cmocka_unit_test(same_job),
		cmocka_unit_test(gives_up),
		cmocka_unit_test(damaged),
		cmocka_unit_test(numbers),
		cmocka_unit_test(renewed),
		cmocka_unit_test(taken_and_ended),
		cmocka_unit_test(shared),
		cmocka_unit_test(links),
		cmocka_unit_test(unreadable_proc),
		cmocka_unit_test(contention),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
