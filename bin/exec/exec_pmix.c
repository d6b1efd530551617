/* SPDX-License-Identifier: BSD-3-Clause */
#include "exec/exec_pmix.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/ranks.h"

#define JOIN_MS 10000
#define LEAVE_MS 5000
#define OTHERS_MS 5000

/* Sent by the child through a pipe. */
struct answer {
	int rc;
	struct error err;
	struct ranks_place place;
};

/* After a client's first connection, servers of PMIx 4 and 5 keep data that only its kind of store
 * can read. With "hash" the rank's next client may be of any version. */
static void query_place(const struct env *env, int fd)
{
	struct answer answer = {0};
	struct ranks *ranks = NULL;

	setenv("PMIX_MCA_gds", "hash", 1);
	answer.rc = ranks_join(env, JOIN_MS, &ranks, &answer.err);
	if (!answer.rc)
		answer.place = *ranks_place(ranks);
	(void)!write(fd, &answer, sizeof answer); /* less than a pipe accepts at once */
	if (!answer.rc)
		ranks_leave(ranks);
	_exit(0);
}

/* Read the answer and wait for the child's end, within a limit. */
static int read_answer(int fd, struct answer *out, struct error *err)
{
	size_t size = 0;
	char more;

	for (;;) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		int ready = poll(&wait, 1, size < sizeof *out ? JOIN_MS + LEAVE_MS : LEAVE_MS);
		ssize_t n;

		if (ready < 0 && errno == EINTR)
			continue;
		if (ready < 1)
			break;
		n = size < sizeof *out ? read(fd, (char *)out + size, sizeof *out - size)
				       : read(fd, &more, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		size += (size_t)n;
	}
	if (size >= sizeof *out)
		return 0;
	return error_set(
		err, ERR_NETWORK,
		"the PMIx server that PMIX_NAMESPACE names did not answer with this rank's place; "
		"check that the launcher (prterun) that started it still runs");
}

/* Wait until all ranks of this node have queried. A server counts a client that leaves as lost from
 * a fence that others are in. Their fence then fails, or the server aborts (openpmix issue 3931;
 * PRRTE 3.0.14, once in 75 runs). So no rank may start its program while another's query is open.
 * The ranks synchronise in the launcher's directory on this node, which belongs to the user;
 * without one no rank waits. */
static void wait_for_others(const struct env *env, const char *job, int local_size)
{
	const char *dir = env_get(env, "PMIX_SERVER_TMPDIR");
	char path[4096];
	struct stat info;
	int fd;

	if (!dir || *dir != '/' || strchr(job, '/') ||
	    snprintf(path, sizeof path, "%s/berth-exec.%s", dir, job) >= (int)sizeof path)
		return;
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	if (write(fd, ".", 1) == 1 && !fstat(fd, &info) && info.st_size == local_size)
		unlink(path);
	for (int i = 0; i < OTHERS_MS && !fstat(fd, &info) && info.st_size < local_size; i++)
		usleep(1000);
	close(fd);
}

int exec_pmix_find(const struct env *env, struct exec_place *out, struct error *err)
{
	struct answer answer;
	int ends[2], rc;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC))
		return error_set(err, ERR_UNAVAILABLE, "cannot create a pipe: %s", strerror(errno));
	child = fork();
	if (!child) {
		close(ends[0]);
		query_place(env, ends[1]);
	}
	close(ends[1]);
	rc = child < 0 ? error_set(err, ERR_UNAVAILABLE, "cannot create a process: %s",
				   strerror(errno))
		       : read_answer(ends[0], &answer, err);
	close(ends[0]);
	if (child > 0) {
		kill(child, SIGKILL); /* it has ended already unless it is late */
		waitpid(child, NULL, 0);
	}
	if (!rc && answer.rc) {
		*err = answer.err;
		rc = answer.rc;
	}
	if (rc)
		return rc;
	if (answer.place.local_rank < 0 || answer.place.local_rank >= answer.place.local_size ||
	    answer.place.local_size > answer.place.size || answer.place.rank >= answer.place.size)
		return error_set(
			err, ERR_DATA,
			"PMIx reports an invalid place: rank %d of %d, local rank %d of %d",
			answer.place.rank, answer.place.size, answer.place.local_rank,
			answer.place.local_size);
	*out = (struct exec_place){
		.started_by = "prterun",
		.detected_by = "PMIX_NAMESPACE",
		.binds = true,
		.rank = answer.place.rank,
		.size = answer.place.size,
		.local_rank = answer.place.local_rank,
		.local_size = answer.place.local_size,
		.node_rank = answer.place.node_rank,
	};
	snprintf(out->job, sizeof out->job, "%s", env_get(env, "PMIX_NAMESPACE"));
	wait_for_others(env, out->job, out->local_size);
	return 0;
}
