/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading needs no lock. A claim that uses something is checked against the others and written
 * under a lock, so that two agents cannot both find the same GPU free. */
#include "process/claims.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "process/tmpdir.h"

#define CLAIM "claim"
#define PLACE "place"
#define CLAIM_MAX (1 << 16)
#define LOCK_MS 2000 /* other agents hold it while they read a few files */

/* ---- reading ---- */

struct search {
	const char *file, *own, *scope, *outer;
	json_t *found;
};

/* Is name in a list with commas? */
static bool is_listed(const char *list, const char *name)
{
	size_t size = strlen(name);

	for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
		if (strcspn(at, ",") == size && !strncmp(at, name, size))
			return true;
	return false;
}

static const char *text_of(const json_t *claim, const char *member)
{
	const char *text = json_string_value(json_object_get(claim, member));

	return text ? text : "";
}

static void read_claim(void *context, const char *path, bool live)
{
	struct search *search = context;
	char file[PATH_MAX];
	JSON_AUTO claim = NULL;

	if (!live || !strcmp(path, search->own))
		return;
	snprintf(file, sizeof file, "%s/%s", path, search->file);
	if (!json_read_file(file, CLAIM_MAX, &claim, NULL) &&
	    !strcmp(text_of(claim, "scope"), search->scope) &&
	    !is_listed(search->outer, text_of(claim, "run"))) {
		json_object_set_new(claim, "dir", json_text(path));
		json_array_append(search->found, claim);
	}
}

/* The directory that holds dir. */
static void parent_of(const char *dir, char *out, size_t size)
{
	const char *slash = strrchr(dir, '/');

	snprintf(out, size, "%.*s", slash ? (int)(slash - dir) : 0, dir);
}

static json_t *read_files(const char *file, const char *dir, const char *scope, const char *outer)
{
	struct search search = {file, dir, scope, outer, json_array()};
	char parent[PATH_MAX];

	parent_of(dir, parent, sizeof parent);
	if (search.found)
		tmpdir_each(parent, file, read_claim, &search);
	return search.found;
}

json_t *claims_read(const char *dir, const char *scope, const char *outer)
{
	return read_files(CLAIM, dir, scope, outer);
}

/* ---- taking ---- */

/* Lock what the agents of this user share: a file that exists only while one of them needs it. */
static int lock(const char *path, struct error *err)
{
	int64_t until = clock_now_ms() + LOCK_MS;
	struct stat status, named;

	while (clock_now_ms() < until) {
		/* TMPDIR may be writable for all users: follow no link, and use no file of another
		 * user. */
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		int why = errno;

		/* Also if open failed: the kernel (fs.protected_regular) or the mode refuses what
		 * others have put there. */
		if (!(fd < 0 ? lstat(path, &status) : fstat(fd, &status)) &&
		    status.st_uid != geteuid()) {
			if (fd >= 0)
				close(fd);
			return error_set(err, ERR_DATA,
					 "cannot lock %s: it belongs to user %u. Ask the "
					 "administrator to remove it, or set TMPDIR, for all runs "
					 "of the job, to a directory where only you can write",
					 path, (unsigned)status.st_uid);
		}
		if (fd < 0)
			return error_set(err, ERR_OUTPUT, "cannot lock %s: %s", path,
					 strerror(why));
		/* The one before removes the file, so the name may belong to another one by now. */
		/* Polled, because flock has no time limit. */
		if (flock(fd, LOCK_EX | LOCK_NB))
			usleep(1000);
		else if (!lstat(path, &named) && named.st_ino == status.st_ino)
			return fd;
		close(fd);
	}
	return error_set(err, ERR_OUTPUT, "%s was locked for %d s by another agent", path,
			 LOCK_MS / 1000);
}

static bool uses_same(const json_t *claim, const json_t *other)
{
	const json_t *mine, *theirs;
	size_t i, j;

	json_array_foreach(json_object_get(claim, "uses"), i, mine)
	{
		json_array_foreach(json_object_get(other, "uses"), j, theirs)
		{
			if (json_equal(mine, theirs))
				return true;
		}
	}
	return false;
}

static int write_file(const char *dir, const char *file, const json_t *claim, struct error *err)
{
	char path[PATH_MAX];
	char *text;
	int rc;

	snprintf(path, sizeof path, "%s/%s", dir, file);
	if (!json_array_size(json_object_get(claim, "uses")) && !json_object_get(claim, "since"))
		return unlink(path) && errno != ENOENT
			       ? error_set(err, ERR_OUTPUT, "cannot remove %s: %m", path)
			       : 0;
	text = json_dumps(claim, JSON_COMPACT);
	if (!text)
		return error_memory(err, "a claim");
	rc = file_write_temporary(path, text, strlen(text), 0600, err);
	free(text);
	return rc;
}

int claims_take(const char *dir, const json_t *claim, const char *outer, bool share,
		json_t **others, struct error *err)
{
	char path[PATH_MAX];
	json_t *found, *other;
	bool held = false, alone = share || !json_array_size(json_object_get(claim, "uses"));
	size_t i;
	int fd = -1, rc = 0;

	if (!alone) {
		parent_of(dir, path, sizeof path - 40);
		snprintf(path + strlen(path), 40, "/berth-claims-%ld", (long)geteuid());
		fd = lock(path, err);
		if (fd < 0)
			return fd;
	}
	found = claims_read(dir, text_of(claim, "scope"), outer);
	json_array_foreach(found, i, other)
	{
		held |= !alone && uses_same(claim, other);
	}
	if (!found)
		rc = error_memory(err, "claims");
	else if (!held)
		rc = write_file(dir, CLAIM, claim, err);
	if (fd >= 0) {
		/* Before the lock is released: afterwards the name may be another agent's. */
		unlink(path);
		close(fd);
	}
	if (rc)
		json_decref(found);
	else
		*others = found;
	return rc ? rc : held;
}

/* ---- the queue ---- */

int claims_queue(const char *dir, const json_t *claim, json_t **others, struct error *err)
{
	int rc = write_file(dir, PLACE, claim, err);

	if (rc)
		return rc;
	*others = read_files(PLACE, dir, text_of(claim, "scope"), NULL);
	return *others ? 0 : error_memory(err, "the queue");
}

struct waiting {
	int64_t since;
	const char *run, *dir;
};

static struct waiting waiting_of(const json_t *claim)
{
	return (struct waiting){json_integer_value(json_object_get(claim, "since")),
				text_of(claim, "run"), text_of(claim, "dir")};
}

static int compare(const void *a, const void *b)
{
	const struct waiting *x = a, *y = b;

	if (x->since != y->since)
		return x->since < y->since ? -1 : 1;
	return strcmp(x->run, y->run);
}

size_t claims_before(const json_t *claims, const json_t *own, size_t place, const char **dir)
{
	struct waiting me = waiting_of(own);
	struct waiting *list = calloc(json_array_size(claims) + 1, sizeof *list);
	size_t count = 0, before = 0, i;
	json_t *claim;

	json_array_foreach(claims, i, claim)
	{
		struct waiting other = waiting_of(claim);

		if (list && other.since && compare(&other, &me) < 0)
			list[count++] = other;
	}
	qsort(list, count, sizeof *list, compare);
	/* A run has a claim on each node, and one where it was started. */
	for (i = 0; i < count; i++)
		if (!i || compare(&list[i], &list[i - 1]))
			list[before++] = list[i];
	if (dir)
		*dir = place && place <= before ? list[before - place].dir : NULL;
	free(list);
	return before;
}
