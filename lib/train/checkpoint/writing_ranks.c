/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/writing_ranks.h"

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

#define MARKER ".writer."
#define POLLS 10 /* a tenth of a second apart: what network file systems may take */

/* Markers of one search, on this rank. */
struct markers {
	const char *directory;
	int rank;
	uint64_t number; /* distinguishes them from markers of other searches */
};

/* Collective; reduces nothing. */
static int barrier(const struct rank_group *group, struct error *err)
{
	double nothing[1] = {0};

	return rank_group_reduce(group, nothing, 1, COMM_MAX, err);
}

static int marker_path(const struct markers *markers, int rank, char **path, struct error *err)
{
	if (asprintf(path, "%s/" MARKER "%016" PRIx64 ".%d", markers->directory, markers->number,
		     rank) >= 0)
		return 0;
	*path = NULL;
	return error_memory(err, "a file's name");
}

/* Make the directory, and this rank's marker in it. */
static int create_marker(const struct markers *markers, struct error *err)
{
	char *path = NULL;
	int fd = -1, rc = file_make_dirs(markers->directory, err);

	if (!rc)
		rc = marker_path(markers, markers->rank, &path, err);
	if (!rc)
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (!rc && fd < 0)
		rc = error_set(err, ERR_OUTPUT, "cannot write to --ckpt %s: %s", markers->directory,
			       strerror(errno));
	if (fd >= 0)
		close(fd);
	free(path);
	return rc;
}

static void remove_marker(const struct markers *markers)
{
	char *path;

	if (marker_path(markers, markers->rank, &path, NULL))
		return;
	unlink(path);
	free(path);
}

static bool sees_marker_of_rank_0(const struct markers *markers)
{
	char *path;
	bool seen = false;

	if (marker_path(markers, 0, &path, NULL))
		return false;
	for (int i = 0; !seen && i < POLLS; i++) {
		if (i)
			nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
		seen = !access(path, F_OK);
	}
	free(path);
	return seen;
}

/* The lowest rank that left its marker in this directory; INT32_MAX: none did. */
static int lowest_marker_rank(const struct markers *markers)
{
	DIR *dir = opendir(markers->directory);
	struct dirent *entry;
	char begin[40];
	int lowest = INT32_MAX;

	snprintf(begin, sizeof begin, MARKER "%016" PRIx64 ".", markers->number);
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

/* Choose one rank per directory among the nodes that do not see rank 0's. Collective. */
static int choose_writers(const struct rank_group *group, const struct markers *markers,
			  bool sees_another, struct writing_ranks *out, struct error *err)
{
	struct error why = {0};
	bool has_marker = sees_another && !create_marker(markers, &why);
	int rc = barrier(group, err);
	double copies[1];

	if (sees_another && !has_marker)
		rank_group_note_here(
			group, "warning: rank %d: this node keeps no copy of the checkpoints: %s",
			markers->rank, why.text);
	if (!rc && has_marker)
		out->own = lowest_marker_rank(markers) == markers->rank;
	copies[0] = out->own;
	if (!rc)
		rc = rank_group_reduce(group, copies, 1, COMM_SUM, err);
	if (has_marker)
		remove_marker(markers);
	if (rc)
		return rc;
	out->count = (int)copies[0];
	if (out->count > 1)
		rank_group_note(
			group,
			"note: --ckpt %s is not a directory that all nodes share: %d copies of "
			"each checkpoint are kept",
			markers->directory, out->count);
	return 0;
}

int writing_ranks_find(struct rank_group *group, const char *directory, int local_rank,
		       struct writing_ranks *out, struct error *err)
{
	struct markers markers = {.directory = directory, .rank = rank_group_rank(group)};
	struct writing_ranks found = {.own = !markers.rank, .count = 1};
	/* A launcher that numbers ranks without regard to nodes still has a rank 0. */
	bool leader = !markers.rank || !local_rank, sees_another;
	double count[1] = {leader};
	int rc = rank_group_reduce(group, count, 1, COMM_SUM, err);

	if (rc)
		return rc;
	if (count[0] < 2)
		goto out;
	if (!markers.rank &&
	    getrandom(&markers.number, sizeof markers.number, 0) != sizeof markers.number)
		markers.number = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
	rc = rank_group_broadcast(group, &markers.number, sizeof markers.number, 0, err);
	if (rc)
		return rc;
	rc = rank_group_ready(group, markers.rank ? 0 : create_marker(&markers, err), err);
	if (rc)
		return rc;
	sees_another = leader && markers.rank && !sees_marker_of_rank_0(&markers);
	count[0] = sees_another;
	rc = rank_group_reduce(group, count, 1, COMM_SUM, err);
	if (!rc && count[0] > 0)
		rc = choose_writers(group, &markers, sees_another, &found, err);
	if (!markers.rank)
		remove_marker(&markers);
out:
	if (!rc)
		*out = found;
	return rc;
}
