/* SPDX-License-Identifier: BSD-3-Clause */
/* Which of a job's runs requeues it. Each run on this node holds a shared lock on byte RUNS of one
 * file for as long as it lives, even if it is killed. The file's text is "wanted" while a run that
 * has ended wants the job requeued, empty while another process does that or has failed to, and
 * "requeued" once it has happened.
 *
 * A run that ends locks byte TURN first: so runs end one after the other, and the last one finds
 * that it is the last. If that one is killed, a child of the run that wants the requeue gets the
 * lock on RUNS. Locks of fcntl end with the process, and its children do not inherit them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "run/requeue.h"

#define TURN_MS 90000 /* the turn of another run lasts as long as a requeue */
_Static_assert(TURN_MS == 90000, "requeue.h says 90 s");
#define JOIN_MS 10000
#define POLL_MS 20

enum { TURN = 100, RUNS, NOTED }; /* bytes after the text */

struct requeue_runs {
	int fd;
	char path[PATH_MAX];
};

/* Lock or unlock a byte; wait for other processes until the deadline. Return 0, or -1 and set
 * errno. */
static int lock(int fd, short type, off_t byte, int64_t deadline_ms)
{
	struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	while (fcntl(fd, deadline_ms == INT64_MAX ? F_SETLKW : F_SETLK, &range)) {
		if ((errno != EAGAIN && errno != EACCES) || clock_now_ms() >= deadline_ms)
			return -1;
		nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
	}
	return 0;
}

/* Open the file and lock RUNS. Return 1 if another run has removed the file meanwhile. */
static int open_and_lock(struct requeue_runs *runs, struct error *err)
{
	const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
	struct stat opened, named;

	runs->fd = open(runs->path, flags, 0600);
	if (runs->fd < 0)
		return error_set(err, ERR_OUTPUT, "cannot open %s: %m", runs->path);
	/* Another user's file, or a link to one, would let that user decide. */
	if (fstat(runs->fd, &opened) || !S_ISREG(opened.st_mode) || opened.st_uid != geteuid() ||
	    opened.st_nlink > 1) {
		close(runs->fd);
		runs->fd = -1; /* it stays */
		return error_set(err, ERR_OUTPUT, "%s is not a file of this user alone",
				 runs->path);
	}
	if (lock(runs->fd, F_RDLCK, RUNS, clock_now_ms() + JOIN_MS))
		return error_set(err, ERR_OUTPUT, "cannot lock %s: %m", runs->path);
	return lstat(runs->path, &named) || named.st_ino != opened.st_ino ||
	       named.st_dev != opened.st_dev;
}

int requeue_runs_join(const struct alloc *alloc, const struct env *env, struct requeue_runs **out,
		      struct error *err)
{
	const char *dir = env_get(env, "TMPDIR");
	struct requeue_runs *runs = calloc(1, sizeof *runs);
	char job[200];
	int rc = 1;

	if (!runs)
		return error_memory(err, "--requeue");
	snprintf(job, sizeof job, "%s", alloc->array_task ? alloc->array_task : alloc->job_id);
	for (char *slash = job; (slash = strchr(slash, '/'));)
		*slash = '_';
	snprintf(runs->path, sizeof runs->path, "%s/berth-runs-%u-%s.%d",
		 dir && *dir == '/' ? dir : "/tmp", (unsigned)geteuid(), job, alloc->restarts);
	runs->fd = -1;
	while (rc > 0) {
		if (runs->fd >= 0)
			close(runs->fd);
		rc = open_and_lock(runs, err);
	}
	if (rc)
		requeue_runs_leave(runs);
	else
		*out = runs;
	return rc;
}

void requeue_runs_leave(struct requeue_runs *runs)
{
	char state;

	if (!runs)
		return;
	/* The last run has nothing to tell to later ones. */
	if (runs->fd >= 0 && !lock(runs->fd, F_WRLCK, TURN, 0) &&
	    !lock(runs->fd, F_WRLCK, RUNS, 0) && (pread(runs->fd, &state, 1, 0) != 1 || !state))
		unlink(runs->path);
	if (runs->fd >= 0)
		close(runs->fd); /* ends the locks */
	free(runs);
}

bool requeue_runs_note(struct requeue_runs *runs)
{
	char noted = 0;

	/* The lock stays. */
	return !lock(runs->fd, F_WRLCK, NOTED, 0) && pread(runs->fd, &noted, 1, NOTED) >= 0 &&
	       !noted && pwrite(runs->fd, "n", 1, NOTED) == 1;
}

enum requeue_turn requeue_runs_end(struct requeue_runs *runs, bool wanted)
{
	char state[16] = "";
	bool last;

	if (lock(runs->fd, F_WRLCK, TURN, clock_now_ms() + TURN_MS) ||
	    pread(runs->fd, state, sizeof state - 1, 0) < 0)
		return wanted ? REQUEUE_TURN_NOW : REQUEUE_TURN_NONE; /* better twice than never */
	if (!strcmp(state, "requeued"))
		return REQUEUE_TURN_DONE;
	last = !lock(runs->fd, F_WRLCK, RUNS, 0);
	if (last && (wanted || *state)) {
		(void)!ftruncate(runs->fd, 0);
		return REQUEUE_TURN_NOW;
	}
	if (!last && wanted && pwrite(runs->fd, "wanted", 6, 0) != 6)
		return REQUEUE_TURN_NOW; /* the other runs would not know */
	if (last)
		unlink(runs->path);
	lock(runs->fd, F_UNLCK, RUNS, 0);
	lock(runs->fd, F_UNLCK, TURN, 0);
	return wanted ? REQUEUE_TURN_LATER : REQUEUE_TURN_NONE;
}

bool requeue_runs_outlive(struct requeue_runs *runs)
{
	char state[16] = "";

	file_close_range(STDERR_FILENO + 1, runs->fd - 1);
	file_close_range(runs->fd + 1, INT_MAX);
	return !lock(runs->fd, F_WRLCK, RUNS, INT64_MAX) &&
	       pread(runs->fd, state, sizeof state - 1, 0) > 0 && !strcmp(state, "wanted") &&
	       !ftruncate(runs->fd, 0);
}

void requeue_runs_done(struct requeue_runs *runs, bool job_continues)
{
	/* On a full disk a later run of this job would begin anew. */
	if (!job_continues || pwrite(runs->fd, "requeued", 8, 0) != 8)
		unlink(runs->path);
}
