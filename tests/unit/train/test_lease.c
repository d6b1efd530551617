/* SPDX-License-Identifier: BSD-3-Clause */
/* The lease of a checkpoint directory: who may take it over, holders that are stopped or killed,
 * lost replies, and contention. */
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

#include "base/clock.h"
#include "base/file.h"
#include "train/checkpoint/lease.h"
#include "train/checkpoint/lease_record.h"
#include "../../support/child.h"
#include "../../support/wait.h"

/* For what must happen. */
#define LIMIT_MS wait_ms(30000)

/* ---- faults ---- */

static enum { NO_FAULT, CREATE_REPLY_LOST, NO_LOCKS, LATE_CREATE } fault;

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation)
{
	if (fault != NO_LOCKS)
		return __real_flock(fd, operation);
	errno = ENOLCK;
	return -1;
}

/* Long enough for others to take numbers after this process has listed them, or to see its file
 * before its text. */
static void be_late(void)
{
	usleep(rand() % 20 ? (useconds_t)rand() % 500 : 30000);
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode)
{
	bool creates = flags & O_EXCL && strstr(path, "/.lease-");

	if (creates && fault == LATE_CREATE)
		be_late();
	int fd = __real_open64(path, flags, mode);

	if (creates && fault == LATE_CREATE)
		be_late();
	if (fd < 0 || !creates || fault != CREATE_REPLY_LOST)
		return fd;
	close(fd);
	errno = EEXIST;
	return -1;
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

static atomic_int stop;

static void *renew_theirs(void *argument)
{
	for (int age_s = 900; !stop; age_s++) {
		claim(argument, age_s);
		usleep(20000);
	}
	return NULL;
}

static void keep_note(void *context, const char *text)
{
	snprintf(context, 1000, "%s", text);
}

/* Leases that another machine wrote. */
static void elsewhere(void **state)
{
	static const struct {
		const char *job, *predecessors;
		int attempt;
		bool take_over, renews;
		int rc;
		bool watches;
		const char *note; /* the last one; NULL: none */
	} rows[] = {
		{"mine", "", 1, false, true, -ERR_OUTPUT, true,
		 "to see whether job theirs, process"},
		{"mine", "", 1, false, false, 0, true,
		 "process 7 on far: its lease was not renewed"},
		{"mine", "", 0, true, true, 0, false, "process 7 on far: --take-over"},
		/* An earlier attempt, and the same one. */
		{"theirs", "", 1, false, true, 0, false, NULL},
		{"theirs", "", 0, false, true, -ERR_OUTPUT, true, "to see whether"},
		{"theirs", "", 0, false, false, 0, true, "its lease was not renewed"},
		{"mine", "5, theirs", 0, false, true, 0, false, NULL},
		{"mine", "theirs,5", 0, false, true, 0, false, NULL},
		{"mine", "theirs2,its-theirs", 0, false, true, -ERR_OUTPUT, true, "to see whether"},
	};
	struct rig rig;

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct lease *lease;
		struct error err = {0};
		pthread_t thread;
		char note[1000] = "";

		rig_begin(&rig);
		rig.self = (struct lease_identity){.scheduler = "",
						   .job = rows[i].job,
						   .predecessors = rows[i].predecessors,
						   .attempt = rows[i].attempt};
		rig.request.take_over = rows[i].take_over;
		rig.request.notify = keep_note;
		rig.request.context = note;
		if (rows[i].renews)
			rig.request.watch_ms = LIMIT_MS; /* it ends at the first renewal */
		claim(&rig, 900);
		stop = 0;
		/* A lease that is taken at once could be renewed after that. */
		if (rows[i].rc)
			assert_int_equal(pthread_create(&thread, NULL, renew_theirs, &rig), 0);
		int64_t begin = clock_now_ms();
		int rc = acquire(&rig, &lease, &err);
		int64_t took = clock_now_ms() - begin;

		stop = 1;
		if (rows[i].rc)
			pthread_join(thread, NULL);
		if (rc != rows[i].rc || (rc && !strstr(err.text, "that run is alive")) ||
		    !strstr(note, rows[i].note ? rows[i].note : "") || (!rows[i].note && *note) ||
		    (rows[i].watches && !rc && took < 600))
			fail_msg("row %zu: %d %s, %s", i, rc, err.text, note);
		assert_true(lease_release(lease, LIMIT_MS));
		rig_end(&rig);
	}
}

/* A date says nothing, since clocks jump. */
static void dates(void **state)
{
	static const int ages[] = {0, 864000, -7200};
	struct rig rig;

	for (size_t i = 0; i < ROWS(ages); i++) {
		struct lease *lease;
		struct error err = {0};

		rig_begin(&rig);
		claim(&rig, ages[i]);
		int64_t begin = clock_now_ms();

		if (acquire(&rig, &lease, &err))
			fail_msg("%d s: %s", ages[i], err.text);
		assert_true(clock_now_ms() - begin >= 600);
		assert_true(lease_release(lease, LIMIT_MS));
		rig_end(&rig);
	}
}

/* ---- holders in other processes ---- */

/* Start a process that takes the lease, makes it that of another machine if elsewhere, and stops
 * itself. Once it continues, it renames DIRECTORY/new to DIRECTORY/old if it still may. It exits
 * with 0 if the lease was lost and nothing changed. */
static pid_t start_holder(struct rig *rig, bool elsewhere)
{
	char path[64], old[64], new[64], far = 'x';
	pid_t child = fork();
	struct lease *lease;
	struct error err = {0};
	int status;

	if (child) {
		assert_int_equal(waitpid(child, &status, WUNTRACED), child);
		assert_true(WIFSTOPPED(status));
		return child;
	}
	if (acquire(rig, &lease, &err))
		_exit(FAILED_HERE(1));
	snprintf(path, sizeof path, "%s/.lease-000001", rig->directory);
	snprintf(old, sizeof old, "%s/old", rig->directory);
	snprintf(new, sizeof new, "%s/new", rig->directory);
	if (elsewhere) {
		char text[2000] = "";
		int fd = open(path, O_RDWR);
		char *boot = pread(fd, text, sizeof text - 1, 0) > 0 ? strstr(text, "\"boot\": \"")
								     : NULL;

		if (!boot || pwrite(fd, &far, 1, boot + 9 - text) != 1 || close(fd))
			_exit(FAILED_HERE(1));
	}
	int fd = open(new, O_RDWR | O_CREAT, 0666);

	raise(SIGSTOP);
	if (lease_commit(lease, fd, 0, new, old, &err) != -ERR_OUTPUT || !access(old, F_OK))
		_exit(FAILED_HERE(1));
	lease_release(lease, LIMIT_MS);
	unlink(new);
	_exit(0);
}

static void end_holder(const struct rig *rig, pid_t holder)
{
	char path[64];

	kill(holder, SIGKILL);
	assert_int_equal(waitpid(holder, NULL, 0), holder);
	snprintf(path, sizeof path, "%s/new", rig->directory);
	unlink(path);
}

/* A stopped holder on this machine is alive, however long it does not renew. Once it is killed, its
 * lease is taken over at once. */
static void stopped_here(void **state)
{
	char note[1000] = "";
	struct lease *lease;
	struct error err = {0};
	struct rig rig;

	rig_begin(&rig);
	rig.self.job = "";
	rig.request.watch_ms = LIMIT_MS;
	rig.request.notify = keep_note;
	rig.request.context = note;
	pid_t holder = start_holder(&rig, false);

	assert_int_equal(acquire(&rig, &lease, &err), -ERR_OUTPUT);
	assert_non_null(strstr(err.text, "that process is running"));
	end_holder(&rig, holder);
	assert_int_equal(acquire(&rig, &lease, &err), 0);
	assert_string_equal(note, "");
	assert_true(lease_release(lease, LIMIT_MS));
	rig_end(&rig);
}

static void *kill_soon(void *argument)
{
	usleep(500000);
	kill(*(pid_t *)argument, SIGKILL);
	return NULL;
}

/* An attempt of the same job on this machine is given time to end. */
static void ending_here(void **state)
{
	struct lease *lease;
	struct error err = {0};
	pthread_t thread;
	struct rig rig;

	rig_begin(&rig);
	pid_t holder = start_holder(&rig, false);

	rig.self.attempt = 1;
	assert_int_equal(pthread_create(&thread, NULL, kill_soon, &holder), 0);
	int64_t begin = clock_now_ms();

	if (acquire(&rig, &lease, &err))
		fail_msg("%s", err.text);
	assert_true(clock_now_ms() - begin >= 400);
	pthread_join(thread, NULL);
	end_holder(&rig, holder);
	assert_true(lease_release(lease, LIMIT_MS));
	rig_end(&rig);
}

/* A holder elsewhere that is stopped loses the lease, and finds that out before its next rename. */
static void stopped_elsewhere(void **state)
{
	struct lease *lease;
	struct error err = {0};
	struct rig rig;
	int status;

	rig_begin(&rig);
	rig.self.job = "";
	pid_t holder = start_holder(&rig, true);

	if (acquire(&rig, &lease, &err))
		fail_msg("%s", err.text);
	kill(holder, SIGCONT);
	assert_int_equal(waitpid(holder, &status, 0), holder);
	assert_int_equal(status, 0);
	assert_int_equal(lease_check(lease, &err), 0);
	assert_true(lease_release(lease, LIMIT_MS));
	rig_end(&rig);
}

/* A lock proves nothing if there is none, as in files of older versions, or if it may belong to
 * another mount of the directory: the lease is watched. */
static void other_records(void **state)
{
	struct lease_record record = {.token = "t.0"};
	struct lease *lease;
	struct error err = {0};
	struct stat info;
	struct rig rig;

	for (int mount = 0; mount < 3; mount++) {
		rig_begin(&rig);
		lease_record_set_process(&record);
		assert_int_equal(stat(rig.directory, &info), 0);
		record.device = mount ? (int64_t)info.st_dev + mount - 1 : 0;
		write_lease(&rig, &record, 0);
		int64_t begin = clock_now_ms();

		if (acquire(&rig, &lease, &err))
			fail_msg("%s", err.text);
		/* Mount 1 is ours, and the lock is free. */
		assert_int_equal(clock_now_ms() - begin >= 600, mount != 1);
		assert_true(lease_release(lease, LIMIT_MS));
		rig_end(&rig);
	}
}

/* On a file system without locks a run on this machine is watched like one elsewhere. */
static void without_locks(void **state)
{
	struct lease *lease, *other;
	struct error err = {0};
	struct rig rig;

	rig_begin(&rig);
	fault = NO_LOCKS;
	rig.request.period_ms = 20;
	rig.request.watch_ms = LIMIT_MS; /* it ends at the first renewal */
	rig.self.job = "";
	assert_int_equal(acquire(&rig, &lease, &err), 0);
	assert_int_equal(acquire(&rig, &other, &err), -ERR_OUTPUT);
	assert_non_null(strstr(err.text, "its lease is being renewed, so that run is alive"));
	assert_true(lease_release(lease, LIMIT_MS));
	rig_end(&rig);

	rig_begin(&rig);
	fault = NO_LOCKS;
	pid_t holder = start_holder(&rig, false);

	end_holder(&rig, holder);
	rig.self.job = "";
	int64_t begin = clock_now_ms();

	assert_int_equal(acquire(&rig, &lease, &err), 0);
	assert_true(clock_now_ms() - begin >= 600);
	assert_true(lease_release(lease, LIMIT_MS));
	rig_end(&rig);
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

/* A lease that cannot be read is watched; a FIFO does not block. */
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
		char note[1000] = "";

		rig.request.notify = keep_note;
		rig.request.context = note;
		int64_t begin = clock_now_ms();

		if (acquire(&rig, &lease, &err) || clock_now_ms() - begin < 600 ||
		    !strstr(note, "from an unknown run (its lease file cannot be read): its lease"))
			fail_msg("row %zu: %s %s", i, err.text, note);
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
		rig.self.job = "";
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
			assert_non_null(strstr(err.text, removed ? "or its lease file was removed"
								 : "was taken over by process"));
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

/* The reply to a create was lost, so the file stays without a text: it is watched and superseded.
 */
static void lost_reply(void **state)
{
	struct lease *lease;
	struct error err = {0};
	struct rig rig;

	rig_begin(&rig);
	fault = CREATE_REPLY_LOST;
	rig.request.cancel = &(atomic_bool){true};
	assert_int_equal(acquire(&rig, &lease, &err), -ERR_OUTPUT);
	fault = NO_FAULT;
	rig.request.cancel = NULL;
	assert_int_equal(acquire(&rig, &lease, &err), 0);
	assert_int_equal(lease_check(lease, &err), 0);
	assert_true(lease_release(lease, LIMIT_MS));
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

/* Runs that start at once after a kill: exactly one gets the lease. */
static void storm(void **state)
{
	static const int counts[] = {2, 10};
	struct rig rig;

	for (int round = 0; round < 24; round++) {
		int count = counts[round % 2], ready[2], winners = 0, status;
		bool elsewhere = round % 4 >= 2;
		pid_t runs[10];
		char byte;

		rig_begin(&rig);
		rig.self.job = "";
		rig.request.watch_ms = 200;
		end_holder(&rig, start_holder(&rig, elsewhere));
		fault = LATE_CREATE;
		assert_int_equal(pipe(ready), 0);
		for (int i = 0; i < count; i++) {
			runs[i] = fork();
			if (runs[i])
				continue;
			struct lease *lease;
			struct error err = {0};

			srand((unsigned)(round * 100 + i));
			close(ready[1]);
			/* The parent closes it once all have started. */
			if (read(ready[0], &byte, 1))
				_exit(FAILED_HERE(1));
			int rc = acquire(&rig, &lease, &err);

			if (rc && !strstr(err.text, "that process is running"))
				_exit(FAILED_HERE(1));
			if (raise(SIGSTOP) || (!rc && lease_check(lease, &err)) ||
			    !lease_release(lease, LIMIT_MS))
				_exit(FAILED_HERE(1));
			_exit(rc ? 0 : 100);
		}
		close(ready[0]);
		close(ready[1]);
		for (int i = 0; i < count; i++) {
			assert_int_equal(waitpid(runs[i], &status, WUNTRACED), runs[i]);
			assert_true(WIFSTOPPED(status));
		}
		for (int i = 0; i < count; i++) {
			kill(runs[i], SIGCONT);
			assert_int_equal(waitpid(runs[i], &status, 0), runs[i]);
			assert_true(WIFEXITED(status));
			winners += WEXITSTATUS(status) == 100;
			assert_true(WEXITSTATUS(status) == 100 || !status);
		}
		assert_int_equal(winners, 1);
		rig_end(&rig);
	}
}

static void contention(void **state)
{
	const char *wanted = getenv("BERTH_TEST_TAKES");
	int takes = wanted ? atoi(wanted) : 400, status;
	pid_t workers[WORKERS];
	struct rig rig;

	rig_begin(&rig);
	rig.self.job = "";
	fault = LATE_CREATE;
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
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(elsewhere),
		cmocka_unit_test(dates),
		cmocka_unit_test(stopped_here),
		cmocka_unit_test(ending_here),
		cmocka_unit_test(stopped_elsewhere),
		cmocka_unit_test(other_records),
		cmocka_unit_test(without_locks),
		cmocka_unit_test(gives_up),
		cmocka_unit_test(damaged),
		cmocka_unit_test(numbers),
		cmocka_unit_test(renewed),
		cmocka_unit_test(taken_and_ended),
		cmocka_unit_test(shared),
		cmocka_unit_test(lost_reply),
		cmocka_unit_test(storm),
		cmocka_unit_test(contention),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
