/* SPDX-License-Identifier: BSD-3-Clause */
/* Who owns a checkpoint directory: cases that a test of the command line could show only by waiting
 * for minutes. */
#include "../rows.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "train/checkpoint/owner.h"

struct rig {
	char directory[32], file[48];
	struct owner_identity self;
	struct owner_request request;
};

static void rig_begin(struct rig *rig)
{
	*rig = (struct rig){.directory = "/tmp/berth-owner-XXXXXX",
			    .self = {.scheduler = "", .job = "mine", .predecessors = ""}};
	assert_non_null(mkdtemp(rig->directory));
	snprintf(rig->file, sizeof rig->file, "%s/.owner", rig->directory);
	rig->request = (struct owner_request){.directory = rig->directory,
					      .self = &rig->self,
					      .stale_ms = 600000,
					      .watch_ms = 600};
}

static void rig_end(struct rig *rig)
{
	unlink(rig->file);
	/* The directory must be empty otherwise. */
	assert_int_equal(rmdir(rig->directory), 0);
}

/* Write the owner file as a job on another machine would have left it age_s ago. */
static void claim(const struct rig *rig, int renewals, int age_s)
{
	char text[256];
	struct timespec times[2] = {{0}, {0}};
	struct error err = {0};

	snprintf(text, sizeof text,
		 "{\"scheduler\":\"\",\"job\":\"theirs\",\"host\":\"far\",\"boot\":\"b\",\"pid\":7,"
		 "\"started\":1,\"token\":\"t\",\"renewals\":%d}\n",
		 renewals);
	assert_int_equal(file_write_atomic(rig->file, text, strlen(text), 0666, &err), 0);
	clock_gettime(CLOCK_REALTIME, &times[1]);
	times[1].tv_sec -= age_s;
	times[0] = times[1];
	assert_int_equal(utimensat(AT_FDCWD, rig->file, times, 0), 0);
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

	rig_begin(&rig);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct owner *owner = NULL;
		struct error err = {0};

		claim(&rig, 1, rows[i].age_s);
		int rc = owner_acquire(&rig.request, &owner, &err);

		if (rc != rows[i].rc || (rc && !strstr(err.text, rows[i].word)))
			fail_msg("%d s: %d %s", rows[i].age_s, rc, err.text);
		owner_release(owner);
		/* A refused run leaves the file unchanged. */
		assert_int_equal(access(rig.file, F_OK) == 0, rc != 0);
	}
	rig_end(&rig);
}

static atomic_int stop;

static void *renew_theirs(void *argument)
{
	for (int i = 2; !stop; i++) {
		claim(argument, i, 900);
		usleep(100000);
	}
	return NULL;
}

/* If a clock jumped, the file of a live run may look old, but the run is seen renewing it. */
static void who_renews_lives(void **state)
{
	struct owner *owner = NULL;
	struct error err = {0};
	pthread_t thread;
	struct rig rig;

	rig_begin(&rig);
	claim(&rig, 1, 900);
	stop = 0;
	assert_int_equal(pthread_create(&thread, NULL, renew_theirs, &rig), 0);
	int rc = owner_acquire(&rig.request, &owner, &err);

	stop = 1;
	pthread_join(thread, NULL);
	if (rc != -ERR_OUTPUT || !strstr(err.text, "that run is alive"))
		fail_msg("%d %s", rc, err.text);
	rig_end(&rig);
}

/* Another run's file is never overwritten, nor removed at the end. */
static void renewed(void **state)
{
	struct owner *owner;
	struct error err = {0};
	struct stat before, after;
	struct rig rig;
	char *text;
	size_t size;

	rig_begin(&rig);
	assert_int_equal(owner_acquire(&rig.request, &owner, &err), 0);
	assert_int_equal(stat(rig.file, &before), 0);
	assert_int_equal(owner_renew(owner, &err), 0);
	assert_int_equal(stat(rig.file, &after), 0);
	assert_int_not_equal(before.st_ino, after.st_ino);
	assert_false(owner_is_lost(owner));
	claim(&rig, 1, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(owner_renew(owner, &err), -ERR_OUTPUT);
		assert_non_null(strstr(err.text, "job theirs, process 7 on far"));
		assert_true(owner_is_lost(owner));
	}
	owner_release(owner);
	assert_int_equal(file_read(rig.file, 4096, &text, &size, &err), 0);
	assert_non_null(strstr(text, "theirs"));
	free(text);
	rig_end(&rig);
}

/* A run that took over and ended before this one checked leaves no file. The directory is lost all
 * the same. */
static void taken_and_ended(void **state)
{
	struct owner *owner, *taker;
	struct error err = {0};
	struct owner_request request;
	struct rig rig;

	rig_begin(&rig);
	assert_int_equal(owner_acquire(&rig.request, &owner, &err), 0);
	request = rig.request;
	request.take_over = true;
	assert_int_equal(owner_acquire(&request, &taker, &err), 0);
	owner_release(taker);
	assert_int_not_equal(access(rig.file, F_OK), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(owner_renew(owner, &err), -ERR_OUTPUT);
		assert_non_null(strstr(err.text, "is missing: another run took"));
		assert_true(owner_is_lost(owner));
		assert_int_not_equal(access(rig.file, F_OK), 0);
	}
	owner_release(owner);
	rig_end(&rig);
}

/* The same job on another machine: a later attempt takes over at once; the same attempt takes over
 * only if the file is not renewed. */
static void same_job(void **state)
{
	static const struct {
		int attempt;
		bool renews;
		int rc;
	} rows[] = {{1, true, 0}, {0, true, -ERR_OUTPUT}, {0, false, 0}};
	struct rig rig;

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct owner *owner = NULL;
		struct error err = {0};
		pthread_t thread;

		rig_begin(&rig);
		rig.self.job = "theirs";
		rig.self.attempt = rows[i].attempt;
		claim(&rig, 1, 0);
		stop = 0;
		if (rows[i].renews && rows[i].rc)
			assert_int_equal(pthread_create(&thread, NULL, renew_theirs, &rig), 0);
		int rc = owner_acquire(&rig.request, &owner, &err);

		stop = 1;
		if (rows[i].renews && rows[i].rc)
			pthread_join(thread, NULL);
		if (rc != rows[i].rc || (rc && !strstr(err.text, "of the same job is alive")))
			fail_msg("row %zu: %d %s", i, rc, err.text);
		owner_release(owner);
		rig_end(&rig);
	}
}

/* A waiting run can be cancelled, because the other ranks may have ended. */
static void gives_up(void **state)
{
	static const atomic_bool yes = true;
	struct owner *owner = NULL;
	struct error err = {0};
	struct timespec begin, end;
	struct rig rig;

	rig_begin(&rig);
	rig.request.watch_ms = 100000;
	rig.request.cancel = &yes;
	claim(&rig, 1, 900);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	assert_int_equal(owner_acquire(&rig.request, &owner, &err), -ERR_OUTPUT);
	clock_gettime(CLOCK_MONOTONIC, &end);
	assert_true(end.tv_sec - begin.tv_sec < 50);
	rig_end(&rig);
}

/* Of many runs that start at once, one gets the directory: all of them are alive and renew. */
#define MANY 12
static struct rig crowd;
static struct owner *owners[MANY];

static void *come(void *argument)
{
	struct error err = {0};
	int i = (int)(intptr_t)argument;

	/* Each run is a separate job. */
	owner_acquire(&crowd.request, &owners[i], &err);
	return NULL;
}

static void one_of_many(void **state)
{
	pthread_t threads[MANY];
	int got = 0;

	rig_begin(&crowd);
	crowd.self.job = "";
	claim(&crowd, 1, 900);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, come, (void *)(intptr_t)i), 0);
	for (int i = 0; i < MANY; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < MANY; i++) {
		got += owners[i] != NULL;
		owner_release(owners[i]);
	}
	assert_int_equal(got, 1);
	rig_end(&crowd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ages),	       cmocka_unit_test(who_renews_lives),
		cmocka_unit_test(renewed),     cmocka_unit_test(taken_and_ended),
		cmocka_unit_test(same_job),    cmocka_unit_test(gives_up),
		cmocka_unit_test(one_of_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
