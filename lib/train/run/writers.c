/* SPDX-License-Identifier: BSD-3-Clause */
/* Which ranks write checkpoints: rank 0, and where --ckpt is not one folder for all nodes the first
 * rank of each that sees another folder. A file of rank 0's that a node does not see tells it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "train/run/loop_internal.h"

#define MARKER ".writer."
#define POLLS 10 /* a tenth of a second apart: what network file systems may take */

/* Collective; nothing but a meeting. */
static int barrier(struct train *train, struct error *err)
{
	double nothing[1] = {0};

	return comm_reduce_on_host(train->comm, train->queue, nothing, 1, COMM_MAX, err);
}

static int marker_path(const struct train *train, uint64_t number, int rank, char **path,
		       struct error *err)
{
	if (asprintf(path, "%s/" MARKER "%016" PRIx64 ".%d", train->options->ckpt, number, rank) >=
	    0)
		return 0;
	*path = NULL;
	return error_memory(err, "a file's name");
}

/* Make the folder, and in it this rank's mark. */
static int create_marker(struct train *train, uint64_t number, struct error *err)
{
	const char *directory = train->options->ckpt;
	char *path = NULL;
	int fd = -1, rc = file_make_dirs(directory, err);

	if (!rc)
		rc = marker_path(train, number, train->comm->rank, &path, err);
	if (!rc)
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (!rc && fd < 0)
		rc = error_set(err, ERR_OUTPUT, "--ckpt %s cannot be written: %s", directory,
			       strerror(errno));
	if (fd >= 0)
		close(fd);
	free(path);
	return rc;
}

static void remove_marker(struct train *train, uint64_t number)
{
	char *path;

	if (marker_path(train, number, train->comm->rank, &path, NULL))
		return;
	unlink(path);
	free(path);
}

static bool sees_marker_of_rank_0(struct train *train, uint64_t number)
{
	char *path;
	bool seen = false;

	if (marker_path(train, number, 0, &path, NULL))
		return false;
	for (int i = 0; !seen && i < POLLS; i++) {
		if (i)
			nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
		seen = !access(path, F_OK);
	}
	free(path);
	return seen;
}

/* The lowest rank that left its mark here; INT_MAX: none. */
static int lowest_marker_rank(struct train *train, uint64_t number)
{
	DIR *dir = opendir(train->options->ckpt);
	struct dirent *entry;
	char begin[40];
	int lowest = INT32_MAX;

	snprintf(begin, sizeof begin, MARKER "%016" PRIx64 ".", number);
	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, begin, strlen(begin)))
			continue;
		int rank = atoi(entry->d_name + strlen(begin));

		lowest = rank < lowest ? rank : lowest;
	}
	if (dir)
		closedir(dir);
	return lowest;
}

/* Of nodes that do not see rank 0's folder: one rank a folder. Collective. */
static int choose_writers(struct train *train, uint64_t number, bool cannot_tell, struct error *err)
{
	struct error why = {0};
	char text[1200];
	bool has_marker = cannot_tell && !create_marker(train, number, &why);
	int rc = barrier(train, err);
	double copies[1];

	if (cannot_tell && !has_marker) {
		snprintf(text, sizeof text, "note: rank %d: no copy of the checkpoints here: %s",
			 train->comm->rank, why.text);
		train->sink->note(train->sink->context, text);
	}
	if (!rc && has_marker)
		train->writes = lowest_marker_rank(train, number) == train->comm->rank;
	copies[0] = train->writes;
	if (!rc)
		rc = comm_reduce_on_host(train->comm, train->queue, copies, 1, COMM_SUM, err);
	if (has_marker)
		remove_marker(train, number);
	if (rc)
		return rc;
	train->writers = (int)copies[0];
	if (train->writers > 1)
		train_note(train, "--ckpt %s is not one folder for all nodes: %d copies are kept",
			   train->options->ckpt, train->writers);
	return 0;
}

int train_find_writers(struct train *train, struct error *err)
{
	struct comm *comm = train->comm;
	/* Whoever numbers ranks without regard to nodes still has a rank 0. */
	bool leader = !comm->rank || !train->place->local_rank, cannot_tell;
	double count[1] = {leader};
	uint64_t number = 0;
	int rc = comm_reduce_on_host(comm, train->queue, count, 1, COMM_SUM, err);

	if (rc)
		return rc;
	train->writes = !comm->rank;
	train->writers = 1;
	if (count[0] < 2)
		return 0;
	if (!comm->rank && getrandom(&number, sizeof number, 0) != sizeof number)
		number = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
	rc = comm_broadcast_on_host(comm, train->queue, &number, sizeof number, 0, err);
	if (rc)
		return rc;
	rc = train_ready(train, comm->rank ? 0 : create_marker(train, number, err), err);
	if (rc)
		return rc;
	cannot_tell = leader && comm->rank && !sees_marker_of_rank_0(train, number);
	count[0] = cannot_tell;
	rc = comm_reduce_on_host(comm, train->queue, count, 1, COMM_SUM, err);
	if (!rc && count[0] > 0)
		rc = choose_writers(train, number, cannot_tell, err);
	if (!comm->rank)
		remove_marker(train, number);
	return rc;
}
