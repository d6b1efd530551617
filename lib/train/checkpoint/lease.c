/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/lease.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "train/checkpoint/lease_record.h"

#define PREFIX ".lease-"
#define NUMBER_DIGITS_MAX 15
#define KEPT 2	  /* files below the highest, for clients with old lists */
#define TRIES 100 /* while other runs take numbers */
#define POLL_MS 100
#define ENDING_MS 10000 /* for a process of the same job that is about to end */

_Static_assert(LEASE_WATCH_MS == 4 * LEASE_PERIOD_MS, "a live run renews within the watch");

struct lease {
	const char *directory;
	int64_t number;
	struct lease_record self;
	int fd, period_ms;
	int end; /* an eventfd that ends the thread */
	pthread_t thread;
	pthread_mutex_t lock;
	struct error lost; /* guarded by the lock; code 0: it is ours */
};

void lease_new_run(char run[LEASE_RUN_BYTES])
{
	uint64_t random[2] = {0};

	if (getrandom(random, sizeof random, 0) != sizeof random)
		random[0] = (uint64_t)clock_wall_us() ^ (uint64_t)getpid() << 48;
	snprintf(run, LEASE_RUN_BYTES, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
}

/* ---- the directory ---- */

/* The number in a lease file's name; 0: another name. */
static int64_t number_of(const char *name)
{
	const char *digits = name + sizeof PREFIX - 1;
	size_t size = strncmp(name, PREFIX, sizeof PREFIX - 1) ? 0 : strspn(digits, "0123456789");

	return size && size <= NUMBER_DIGITS_MAX && !digits[size] ? strtoll(digits, NULL, 10) : 0;
}

static const char *name_of(int64_t number, char name[NAME_MAX + 1])
{
	snprintf(name, NAME_MAX + 1, PREFIX "%06" PRId64, number);
	return name;
}

/* Read the highest file as lease_record_read does. Opening the directory makes NFS ask the server.
 * sshfs may list what it saw 20 s ago, so the numbers that follow are looked up by name. Return 1,
 * 0 if there is none (if *number is not 0: no longer), or -1 with errno. */
static int read_highest(const char *directory, const char *boot, int64_t *number,
			struct lease_record *out)
{
	DIR *dir = opendir(directory);
	struct dirent *entry;
	char name[NAME_MAX + 1];
	int rc = -1, why;

	*number = 0;
	*out = (struct lease_record){0};
	if (!dir)
		return -1;
	for (errno = 0; (entry = readdir(dir)); errno = 0)
		if (number_of(entry->d_name) > *number)
			*number = number_of(entry->d_name);
	while (!errno && !faccessat(dirfd(dir), name_of(*number + 1, name), F_OK, 0))
		++*number;
	/* A listing that ended early may lack the highest file. */
	if (errno == ENOENT)
		rc = *number ? lease_record_read(dirfd(dir), name_of(*number, name), boot, out) : 0;
	why = errno;
	closedir(dir);
	errno = why;
	return rc;
}

static void remove_old(const struct lease *lease)
{
	DIR *dir = opendir(lease->directory);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (number_of(entry->d_name) && number_of(entry->d_name) < lease->number - KEPT)
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
}

/* ---- takeover ---- */

/* Watch a lease for ms: a locked one until its lock is free, else for a renewal. Return 0 if it was
 * not renewed, 1 if it must be judged again, or -1 if its run is alive. Only the pauses count as
 * time, since no renewal can be seen while the file system does not answer. */
static int watch(const struct lease *lease, const struct lease_request *request,
		 const struct lease_record *record, int ms)
{
	bool locked = record->lock == LEASE_LOCK_HELD;
	struct lease_record seen;
	int64_t highest;
	int changed = 0;

	for (;; ms -= POLL_MS) {
		int found = read_highest(lease->directory, lease->self.boot, &highest, &seen);

		if (found >= 0 && (!found || highest != lease->number || seen.released ||
				   seen.lock != record->lock || seen.readable != record->readable))
			return 1;
		/* A write changes the date before the text. */
		if (found > 0 && !locked &&
		    (seen.renewed.tv_sec != record->renewed.tv_sec ||
		     seen.renewed.tv_nsec != record->renewed.tv_nsec) &&
		    (seen.readable || changed++))
			return -1;
		if (request->cancel && *request->cancel)
			return -1;
		if (ms <= 0)
			return locked ? -1 : 0;
		poll(NULL, 0, POLL_MS);
	}
}

/* Is word in the list, which commas separate? */
static bool list_contains(const char *list, const char *word)
{
	size_t size = strlen(word);

	for (const char *at = list; size && (at = strstr(at, word)); at++)
		if ((at == list || strchr(", ", at[-1])) && strchr(", ", at[size]))
			return true;
	return false;
}

static void notify(const struct lease_request *request, const struct error *note)
{
	if (request->notify && note->text[0])
		request->notify(request->context, note->text);
}

/* May the lease that another run wrote be taken over? Return 0 if it may; note then tells why, or
 * is empty. Return 1 if it must be judged again. */
static int judge(const struct lease *lease, const struct lease_request *request,
		 const struct lease_record *record, struct error *note, struct error *err)
{
	const struct lease_identity *self = request->self;
	bool same = *record->job && !strcmp(record->job, self->job) &&
		    !strcmp(record->scheduler, self->scheduler);
	bool locked = record->lock == LEASE_LOCK_HELD;
	int rc = 0, ms = request->watch_ms ? request->watch_ms : LEASE_WATCH_MS;
	char holder[600];

	*note = (struct error){0};
	if (record->released)
		return 0;
	lease_record_name(record, holder, sizeof holder);
	if (!request->take_over) {
		if (!locked &&
		    (record->lock == LEASE_LOCK_FREE || (same && record->attempt < self->attempt) ||
		     list_contains(self->predecessors, record->job)))
			return 0;
		if (!locked)
			error_set(note, 0,
				  "note: --ckpt %s: waiting %.0f s to see whether %s still renews "
				  "its lease",
				  lease->directory, ms * 1e-3, holder);
		notify(request, note);
		rc = watch(lease, request, record, !locked ? ms : same ? ENDING_MS : 0);
	}
	if (rc < 0)
		return error_set(err, ERR_OUTPUT,
				 "--ckpt %s is in use by %s: %s. Stop that run, choose another "
				 "directory, or pass --take-over if you are sure that the run "
				 "has ended",
				 lease->directory, holder,
				 locked ? "that process is running"
					: "its lease is being renewed, so that run is alive");
	*note = (struct error){0};
	if (!rc)
		error_set(note, 0, "note: taking over --ckpt %s from %s: %s", lease->directory,
			  holder, request->take_over ? "--take-over" : "its lease was not renewed");
	return rc;
}

/* ---- taking it ---- */

/* Try to get a number. Only the directory shows whether that succeeded.
 *
 * The lock shows others on this machine that this process lives. They try it once they have read
 * the text, so it comes first. A POSIX lock would be lost whenever this process reads its file and
 * closes it. A child that forks without exec would keep an flock, and an open-file-description lock
 * as well; the trainer has none, as it starts programs with posix_spawn, and O_CLOEXEC closes fd.
 */
static int create(struct lease *lease, int64_t number, struct error *err)
{
	char path[PATH_MAX + NAME_MAX + 2], name[NAME_MAX + 1], *text;
	struct stat info;
	int rc;

	snprintf(path, sizeof path, "%s/%s", lease->directory, name_of(number, name));
	if (lease->fd >= 0)
		close(lease->fd);
	lease->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (lease->fd < 0 && errno != EEXIST) {
		rc = error_set(err, ERR_OUTPUT, "cannot create %s: %m", path);
		/* Only the reply was lost: a file without a text is there. */
		return access(path, F_OK) ? rc : 0;
	}
	if (lease->fd < 0)
		return 0;
	lease->self.device = !flock(lease->fd, LOCK_EX | LOCK_NB) && !fstat(lease->fd, &info)
				     ? (int64_t)info.st_dev
				     : 0;
	text = lease_record_text(&lease->self);
	/* NFS sends the text before the date. */
	rc = text && !file_write_all(lease->fd, text, strlen(text)) && !futimens(lease->fd, NULL)
		     ? 0
		     : error_set(err, ERR_OUTPUT, "cannot write %s: %m", path);
	free(text);
	return rc;
}

/* Return 1 if another rank of this run has the lease. */
static int take(struct lease *lease, const struct lease_request *request, struct error *err)
{
	size_t run = strlen(request->run);
	struct lease_record record;
	struct error note = {0};
	int rc = file_make_dirs(lease->directory, err);

	for (int i = 0; !rc && i < TRIES; i++) {
		int found =
			read_highest(lease->directory, lease->self.boot, &lease->number, &record);

		if (found < 0)
			return error_set(err, ERR_OUTPUT, "cannot read --ckpt %s: %m",
					 lease->directory);
		if (found > 0 && !strcmp(record.token, lease->self.token)) {
			notify(request, &note);
			return 0;
		}
		if (!strncmp(record.token, request->run, run) && record.token[run] == '.')
			return 1;
		/* If it was removed, there is a higher one. */
		int again = found ? judge(lease, request, &record, &note, err) : lease->number > 0;

		if (again < 0)
			return again;
		if (again)
			continue;
		rc = create(lease, lease->number + 1, err);
		if (i)
			poll(NULL, 0, i);
	}
	return rc ? rc
		  : error_set(err, ERR_OUTPUT, "other runs keep taking --ckpt %s",
			      lease->directory);
}

/* ---- keeping it ---- */

int lease_lost(struct lease *lease, struct error *err)
{
	struct error lost;

	if (!lease)
		return 0;
	pthread_mutex_lock(&lease->lock);
	lost = lease->lost;
	pthread_mutex_unlock(&lease->lock);
	if (!lost.code)
		return 0;
	*err = lost;
	return -lost.code;
}

int lease_check(struct lease *lease, struct error *err)
{
	struct lease_record record;
	char holder[600];
	int64_t number;
	int found, rc = lease_lost(lease, err);

	if (rc || !lease)
		return rc;
	found = read_highest(lease->directory, "", &number, &record);
	if (found > 0 && number == lease->number && !strcmp(record.token, lease->self.token))
		return 0;
	/* A file that cannot be read now is not another run's. */
	if ((found < 0 && errno != ENOENT && errno != ESTALE) ||
	    (found > 0 && number == lease->number && !record.readable))
		return error_set(err, ERR_IO, "cannot read the lease in %s", lease->directory);
	lease_record_name(&record, holder, sizeof holder);
	error_set(err, ERR_OUTPUT, "%s was taken over by %s, so this run can no longer write there",
		  lease->directory,
		  found > 0 && number > lease->number
			  ? holder
			  : "another run, or its lease file was removed");
	log_info(LOG_CHECKPOINT, "lost the lease: %s", err->text);
	pthread_mutex_lock(&lease->lock);
	lease->lost = *err;
	pthread_mutex_unlock(&lease->lock);
	return -ERR_OUTPUT;
}

int lease_commit(struct lease *lease, int fd, int failed, const char *temp, const char *path,
		 struct error *err)
{
	int rc = failed || fsync(fd) ? errno : 0;

	/* Some file systems report a full disk only on close. */
	if (close(fd) && !rc)
		rc = errno;
	errno = rc;
	if (rc)
		rc = error_set(err, ERR_IO, "cannot write %s: %m. The previous file is unchanged",
			       path);
	else if ((rc = lease_check(lease, err)))
		return rc;
	else if (rename(temp, path))
		rc = error_set(err, ERR_IO, "cannot rename the temporary file to %s: %m", path);
	if (rc)
		unlink(temp);
	else if (file_sync_dir(path))
		rc = error_set(err, ERR_IO, "cannot sync the directory of %s: %m", path);
	return rc;
}

/* Renews the lease, and releases it at the end, so that no other thread waits for the file system.
 */
static void *work(void *argument)
{
	struct lease *lease = argument;
	struct pollfd end = {.fd = lease->end, .events = POLLIN};
	struct error ignored;

	while (poll(&end, 1, lease->period_ms) <= 0) {
		/* If it fails, the next renewal may succeed. */
		if (futimens(lease->fd, NULL))
			log_info(LOG_CHECKPOINT, "cannot renew the lease of %s: %s",
				 lease->directory, strerror(errno));
		lease_check(lease, &ignored);
	}
	if (pwrite(lease->fd, "0", 1, LEASE_RECORD_HELD_AT) != 1)
		log_info(LOG_CHECKPOINT, "cannot release the lease of %s: %s", lease->directory,
			 strerror(errno));
	close(lease->fd);
	lease->fd = -1;
	return NULL;
}

static void destroy(struct lease *lease)
{
	if (lease->fd >= 0)
		close(lease->fd);
	if (lease->end >= 0)
		close(lease->end);
	pthread_mutex_destroy(&lease->lock);
	free(lease);
}

int lease_acquire(const struct lease_request *request, struct lease **out, struct error *err)
{
	const struct lease_identity *self = request->self;
	struct lease *lease = calloc(1, sizeof *lease);
	int rc;

	*out = NULL;
	if (!lease)
		return error_memory(err, "a lease");
	lease->directory = request->directory;
	lease->period_ms = request->period_ms ? request->period_ms : LEASE_PERIOD_MS;
	lease->fd = -1;
	lease->end = eventfd(0, EFD_CLOEXEC);
	pthread_mutex_init(&lease->lock, NULL);
	lease_record_set_process(&lease->self);
	lease->self.attempt = self->attempt;
	snprintf(lease->self.scheduler, sizeof lease->self.scheduler, "%s", self->scheduler);
	snprintf(lease->self.job, sizeof lease->self.job, "%s", self->job);
	snprintf(lease->self.token, sizeof lease->self.token, "%s.%d", request->run, request->rank);
	rc = take(lease, request, err);
	if (!rc) {
		remove_old(lease);
		rc = lease->end < 0 ? EMFILE : thread_start(&lease->thread, work, lease);
		if (rc)
			rc = error_set(err, ERR_UNAVAILABLE,
				       "cannot start a thread to renew the lease of --ckpt: %s",
				       strerror(rc));
	}
	if (rc) {
		destroy(lease);
		return rc < 0 ? rc : 0;
	}
	log_info(LOG_CHECKPOINT, "took the lease %" PRId64 " of %s for job %s, attempt %d",
		 lease->number, lease->directory, self->job, self->attempt);
	*out = lease;
	return 0;
}

bool lease_release(struct lease *lease, int timeout_ms)
{
	if (!lease)
		return true;
	eventfd_write(lease->end, 1);
	if (!clock_join(lease->thread, timeout_ms)) {
		pthread_detach(lease->thread);
		return false;
	}
	destroy(lease);
	return true;
}
