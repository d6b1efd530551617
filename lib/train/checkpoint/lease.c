/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/lease.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "train/checkpoint/lease_state.h"

#define PREFIX ".lease-"
#define NUMBER_DIGITS_MAX 15
#define KEPT 2	  /* files below the highest, for clients with old lists */
#define TRIES 100 /* while other runs take numbers */
#define POLL_MS 100

struct lease {
	const char *directory;
	int64_t number;
	int fd;
	struct lease_record self;
	char *text; /* of self */
	int period_ms;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;

	/* guarded by the lock */
	bool ends;
	struct error lost; /* code 0: it is ours */
};

static void pause_ms(int ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

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

static char *path_of(const char *directory, int64_t number)
{
	return text_format("%s/" PREFIX "%06" PRId64, directory, number);
}

/* Read the highest file. Opening the directory makes NFS ask the server. Return 1, 0 if there is
 * none (if *number is not 0: no longer), or -1 with errno. */
static int read_highest(const char *directory, int64_t *number, struct lease_record *out)
{
	DIR *dir = opendir(directory);
	struct dirent *entry;
	char name[NAME_MAX + 1] = "";
	int rc = -1, why;

	*number = 0;
	*out = (struct lease_record){0};
	if (!dir)
		return -1;
	for (errno = 0; (entry = readdir(dir)); errno = 0)
		if (number_of(entry->d_name) > *number) {
			*number = number_of(entry->d_name);
			snprintf(name, sizeof name, "%s", entry->d_name);
		}
	/* A listing that ended early may lack the highest file. */
	if (!errno)
		rc = *name ? lease_record_read(dirfd(dir), name, out) : 0;
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

/* Watch a lease: until its process ends if it is local, else for a renewal. Return 0 if the lease
 * is stale, 1 if it must be judged again, and -1 if its run is alive. */
static int watch(const struct lease_request *request, int64_t number,
		 const struct lease_record *record, bool local, int ms)
{
	struct lease_record seen;
	int64_t highest;

	for (;; ms -= POLL_MS) {
		if (local && lease_record_process_has_ended(record))
			return 0;
		int found = read_highest(request->directory, &highest, &seen);

		if (found >= 0 && (!found || highest != number || seen.released))
			return 1;
		if (found > 0 && !local &&
		    (seen.renewed.tv_sec != record->renewed.tv_sec ||
		     seen.renewed.tv_nsec != record->renewed.tv_nsec))
			return -1;
		if (request->cancel && *request->cancel)
			return -1;
		if (ms <= 0)
			return local ? -1 : 0;
		pause_ms(POLL_MS);
	}
}

static int watch_renewals(const struct lease_request *request, int64_t number,
			  const struct lease_record *record)
{
	int watch_ms = request->watch_ms ? request->watch_ms : LEASE_WATCH_MS;
	char holder[600], text[1000];

	lease_record_name(record, holder, sizeof holder);
	snprintf(text, sizeof text,
		 "note: --ckpt %.200s: waiting %.0f s to see whether %s still renews its lease",
		 request->directory, watch_ms * 1e-3, holder);
	if (request->notify)
		request->notify(request->context, text);
	return watch(request, number, record, false, watch_ms);
}

/* How long ago the lease was renewed, by the file system's clock. */
static int find_age(const struct lease *lease, const struct lease_record *record, double *age_s,
		    struct error *err)
{
	struct stat now;

	if (futimens(lease->fd, NULL) || fstat(lease->fd, &now))
		return error_set(err, ERR_OUTPUT, "cannot write to --ckpt %s: %m",
				 lease->directory);
	*age_s = (double)(now.st_mtim.tv_sec - record->renewed.tv_sec) +
		 (double)(now.st_mtim.tv_nsec - record->renewed.tv_nsec) * 1e-9;
	return 0;
}

/* Return 0 if the lease may be taken over; why then holds the reason, empty if it needs no mention.
 * Return 1 if it must be judged again. */
static int judge(const struct lease *lease, const struct lease_request *request, int64_t number,
		 const struct lease_record *record, char *why, size_t size, struct error *err)
{
	const struct lease_identity *self = request->self;
	struct lease_facts facts = {.record = record,
				    .self = self,
				    .boot = lease->self.boot,
				    .take_over = request->take_over};
	enum lease_state state = lease_state_of(&facts);
	char holder[600];
	int rc;

	if (state == LEASE_NEEDS_SCHEDULER) {
		facts.has_asked = true;
		facts.ended =
			*record->scheduler && *record->job && self->job_has_ended
				? self->job_has_ended(self->context, record->scheduler, record->job)
				: -1;
		state = lease_state_of(&facts);
	}
	if (state == LEASE_NEEDS_AGE) {
		rc = find_age(lease, record, &facts.age_s, err);
		if (rc)
			return rc;
		facts.has_age = true;
		state = lease_state_of(&facts);
	}
	const struct lease_rule *rule = &lease_rules[state];

	rc = rule->stale ? 0 : -1;
	if (rule->watch == LEASE_WATCH_PROCESS)
		rc = watch(request, number, record, true, rule->process_ms);
	else if (rule->watch == LEASE_WATCH_RENEWALS)
		rc = watch_renewals(request, number, record);
	lease_state_text(&facts, state, rc >= 0, why, size);
	lease_record_name(record, holder, sizeof holder);
	return rc >= 0 ? rc
		       : error_set(err, ERR_OUTPUT,
				   "--ckpt %s is in use by %s: %s. Stop that run, choose another "
				   "directory, or pass --take-over if you are sure that the run "
				   "has ended",
				   request->directory, holder, why);
}

static void report_takeover(const struct lease_request *request, const struct lease_record *record,
			    const char *why)
{
	char holder[600], text[1000];

	if (!request->notify || !*why)
		return;
	lease_record_name(record, holder, sizeof holder);
	snprintf(text, sizeof text, "note: taking over --ckpt %.200s from %s: %s",
		 request->directory, holder, why);
	request->notify(request->context, text);
}

/* ---- taking it ---- */

/* Write our record to a temporary file, *temp. */
static int write_temp(struct lease *lease, char **temp, struct error *err)
{
	char *path;
	int rc = file_make_dirs(lease->directory, err);

	if (rc)
		return rc;
	if (asprintf(&path, "%s/.lease", lease->directory) < 0)
		return error_memory(err, "a lease");
	lease->fd = file_create_temp(path, 0666, temp);
	if (lease->fd < 0)
		rc = error_set(err, ERR_OUTPUT, "cannot create %s: %m", path);
	else if (file_write_all(lease->fd, lease->text, strlen(lease->text)))
		rc = error_set(err, ERR_OUTPUT, "cannot write %s: %m", path);
	free(path);
	return rc;
}

/* For a file system without links. */
static int create_number(struct lease *lease, const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	if (fd < 0)
		return -1;
	close(lease->fd);
	lease->fd = fd;
	return file_write_all(fd, lease->text, strlen(lease->text)) ? unlink(path), -1 : 0;
}

/* Try to get a number. Only the directory shows whether that succeeded. */
static int take_number(struct lease *lease, const char *temp, int64_t number, struct error *err)
{
	char *path = path_of(lease->directory, number);
	int rc = path ? link(temp, path) : -1;

	if (!path)
		return error_memory(err, "a lease");
	if (rc && (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK))
		rc = create_number(lease, path);
	rc = rc && errno != EEXIST ? error_set(err, ERR_OUTPUT, "cannot create %s: %m", path) : 0;
	free(path);
	return rc;
}

/* *shared: another rank of this run has the lease. */
static int take(struct lease *lease, const struct lease_request *request, char **temp, bool *shared,
		struct error *err)
{
	size_t run = strlen(request->run);
	struct lease_record record, judged;
	int64_t number;
	char why[200] = "";

	for (int i = 0; i < TRIES; i++) {
		int rc = 0, found = read_highest(request->directory, &number, &record);

		if (found < 0 && errno != ENOENT)
			return error_set(err, ERR_OUTPUT, "cannot read --ckpt %s: %m",
					 request->directory);
		lease->number = number;
		if (found > 0 && !strcmp(record.token, lease->self.token)) {
			report_takeover(request, &judged, why);
			return 0;
		}
		*shared = !strncmp(record.token, request->run, run) && record.token[run] == '.';
		if (*shared)
			return 0;
		if (lease->fd < 0)
			rc = write_temp(lease, temp, err);
		if (!rc && found > 0)
			rc = judge(lease, request, number, &record, why, sizeof why, err);
		if (rc < 0)
			return rc;
		/* It was removed, so there is a higher one. */
		if (rc || (!found && number))
			continue;
		judged = record;
		rc = take_number(lease, *temp, number + 1, err);
		/* The reply may be lost, and yet the link be there. */
		if (rc && (read_highest(request->directory, &number, &record) <= 0 ||
			   strcmp(record.token, lease->self.token) != 0))
			return rc;
		if (i)
			pause_ms(i);
	}
	return error_set(err, ERR_OUTPUT, "other runs keep taking --ckpt %s", request->directory);
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
	found = read_highest(lease->directory, &number, &record);
	if (found > 0 && number == lease->number && !strcmp(record.token, lease->self.token))
		return 0;
	/* A file that cannot be read now is not another run's. */
	if ((found < 0 && errno != ENOENT && errno != ESTALE) ||
	    (found > 0 && number == lease->number && !record.readable))
		return error_set(err, ERR_IO, "cannot read the lease in %s", lease->directory);
	lease_record_name(&record, holder, sizeof holder);
	if (found > 0 && number > lease->number)
		error_set(err, ERR_OUTPUT,
			  "%s was taken over by %s, so this run can no longer write there",
			  lease->directory, holder);
	else
		error_set(err, ERR_OUTPUT,
			  "%s/" PREFIX "%06" PRId64
			  " is missing: another run took over, or the file was removed. This run "
			  "must not write there any longer. Start it again to resume from the "
			  "newest checkpoint",
			  lease->directory, lease->number);
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
	struct timespec next = clock_after_ms(lease->period_ms);
	struct error ignored;

	pthread_mutex_lock(&lease->lock);
	while (!lease->ends) {
		if (pthread_cond_timedwait(&lease->changed, &lease->lock, &next) != ETIMEDOUT)
			continue;
		pthread_mutex_unlock(&lease->lock);
		/* If it fails, the next renewal may succeed. */
		if (futimens(lease->fd, NULL))
			log_info(LOG_CHECKPOINT, "cannot renew the lease of %s: %s",
				 lease->directory, strerror(errno));
		lease_check(lease, &ignored);
		pthread_mutex_lock(&lease->lock);
		next = clock_after_ms(lease->period_ms);
	}
	pthread_mutex_unlock(&lease->lock);
	if (pwrite(lease->fd, "0", 1, LEASE_RECORD_HELD_AT) != 1)
		log_info(LOG_CHECKPOINT, "cannot release the lease of %s: %s", lease->directory,
			 strerror(errno));
	close(lease->fd);
	return NULL;
}

static int start_thread(struct lease *lease, struct error *err)
{
	int rc;

	pthread_mutex_init(&lease->lock, NULL);
	clock_cond_init(&lease->changed);
	rc = thread_start(&lease->thread, work, lease);
	return rc ? error_set(err, ERR_UNAVAILABLE,
			      "cannot start a thread to renew the lease of --ckpt: %s",
			      strerror(rc))
		  : 0;
}

int lease_acquire(const struct lease_request *request, struct lease **out, struct error *err)
{
	struct lease *lease = calloc(1, sizeof *lease);
	bool shared = false;
	char *temp = NULL;
	int rc;

	*out = NULL;
	if (!lease)
		return error_memory(err, "a lease");
	lease->directory = request->directory;
	lease->period_ms = request->period_ms ? request->period_ms : LEASE_PERIOD_MS;
	lease->fd = -1;
	lease_record_set_process(&lease->self);
	lease->self.attempt = request->self->attempt;
	snprintf(lease->self.scheduler, sizeof lease->self.scheduler, "%s",
		 request->self->scheduler);
	snprintf(lease->self.job, sizeof lease->self.job, "%s", request->self->job);
	snprintf(lease->self.token, sizeof lease->self.token, "%s.%d", request->run, request->rank);
	lease->text = lease_record_text(&lease->self);
	rc = lease->text ? take(lease, request, &temp, &shared, err) : error_memory(err, "a lease");
	if (temp)
		unlink(temp);
	free(temp);
	if (!rc && !shared) {
		futimens(lease->fd, NULL);
		remove_old(lease);
		rc = start_thread(lease, err);
	}
	if (rc || shared) {
		if (lease->fd >= 0)
			close(lease->fd);
		free(lease->text);
		free(lease);
		return rc;
	}
	log_info(LOG_CHECKPOINT, "took the lease %" PRId64 " of %s for job %s, attempt %d",
		 lease->number, lease->directory, request->self->job, request->self->attempt);
	*out = lease;
	return 0;
}

bool lease_release(struct lease *lease, int timeout_ms)
{
	if (!lease)
		return true;
	pthread_mutex_lock(&lease->lock);
	lease->ends = true;
	pthread_cond_broadcast(&lease->changed);
	pthread_mutex_unlock(&lease->lock);
	if (!clock_join(lease->thread, timeout_ms)) {
		pthread_detach(lease->thread);
		return false;
	}
	pthread_cond_destroy(&lease->changed);
	pthread_mutex_destroy(&lease->lock);
	free(lease->text);
	free(lease);
	return true;
}
