/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks the checkpoint directory: it exists, is writable, has space, and is the same one on all
 * nodes. Each node writes a file first, then looks for the files of all others. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "check/check_internal.h"

#define SPACE_BYTES (1LL << 30) /* less is too little for checkpoints */
#define SEEN_MS 5000		/* NFS shows new files late */

static void file_name(const struct prober *prober, size_t node, char *path, size_t size)
{
	snprintf(path, size, "%s/.berth-check-%s-%zu", prober->checkpoint, prober->token, node);
}

static json_t *failed(const char *what)
{
	return json_pack("{s:o}", "error", json_sprintf("%s: %s", what, strerror(errno)));
}

static json_t *collect(const struct prober *prober)
{
	static const char text[] = "berth check\n";
	struct statvfs info;
	struct stat dir;
	char path[4200];
	bool written;
	int fd;

	if (!prober->checkpoint)
		return NULL;
	if (stat(prober->checkpoint, &dir))
		return failed("cannot access it");
	if (!S_ISDIR(dir.st_mode))
		return json_pack("{s:s}", "error", "not a directory");
	if (statvfs(prober->checkpoint, &info))
		return failed("cannot determine its free space");
	file_name(prober, prober->node_index, path, sizeof path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return failed("cannot create a file in it");
	written = !file_write_all(fd, text, sizeof text - 1) && !fsync(fd);
	if (close(fd) || !written)
		return failed("cannot write to a file in it");
	return json_pack("{s:I, s:b}", "free",
			 (json_int_t)info.f_bavail * (json_int_t)info.f_frsize, "inodes",
			 !info.f_files || info.f_favail > 0);
}

static json_t *unseen(const struct prober *prober)
{
	json_t *list = json_array();
	char path[4200];

	for (size_t i = 0; i < prober->node_count; i++) {
		file_name(prober, i, path, sizeof path);
		if (access(path, F_OK))
			json_array_append_new(list, json_integer((json_int_t)i));
	}
	return list;
}

static json_t *run(const struct prober *prober, const json_t *question)
{
	const struct timespec pause = {0, 100000000};
	json_t *list = NULL;

	(void)question;
	if (!prober->checkpoint)
		return NULL;
	for (int waited = 0; waited <= SEEN_MS; waited += 100) {
		json_decref(list);
		list = unseen(prober);
		if (!json_array_size(list))
			break;
		nanosleep(&pause, NULL);
	}
	return json_pack("{s:o}", "unseen", list);
}

void probe_checkpoint_clean(const struct prober *prober)
{
	char path[4200];

	if (!prober->checkpoint)
		return;
	file_name(prober, prober->node_index, path, sizeof path);
	unlink(path);
}

/* ---- in the controller ---- */

static bool wrote(const struct check *check, size_t node)
{
	const json_t *answer = check_answer(check, node, "checkpoint");

	return answer && !*check_text(answer, "error");
}

/* The other nodes whose files node does not see although they wrote one; malloced, or NULL. */
static char *not_shared_with(const struct check *check, size_t node)
{
	const json_t *list = json_object_get(check_answer(check, node, "checkpoint?"), "unseen");
	bool *chosen = calloc(check->count, sizeof *chosen);
	char *text = NULL;
	bool some = false;
	json_t *entry;
	size_t i;

	json_array_foreach(list, i, entry)
	{
		json_int_t other = json_integer_value(entry);

		if (chosen && other >= 0 && (size_t)other < check->count &&
		    wrote(check, (size_t)other))
			chosen[other] = some = true;
	}
	if (some)
		text = alloc_node_list(check->request->launch->alloc, chosen);
	free(chosen);
	return text;
}

static void judge_node(struct check *check, size_t i, const json_t *answer)
{
	const char *dir = check->request->checkpoint;
	char *others = not_shared_with(check, i);
	int64_t space = 0;

	if (check->nodes[i].missing) {
		/* its agent is reported */
	} else if (!dir) {
		check_add(check, i, "checkpoint", CHECK_SKIPPED, NULL,
			  "no directory was given with --ckpt");
	} else if (!answer) {
		check_add(check, i, "checkpoint", CHECK_FAULT,
			  "run ls on the directory on that node: its file system may hang",
			  "%s: no answer in time", dir);
	} else if (*check_text(answer, "error")) {
		check_add(check, i, "checkpoint", CHECK_FAULT,
			  "create it (mkdir -p) on a file system that all nodes share and that you "
			  "may write to; berth checks only a directory that exists",
			  "%s: %s", dir, check_text(answer, "error"));
	} else if (others) {
		check_add(check, i, "checkpoint", CHECK_FAULT,
			  "use a directory on a file system that all nodes share",
			  "%s is not the same directory on all nodes: files written on %s are not "
			  "visible here",
			  dir, others);
	} else if (json_get_int("checkpoint", answer, "free", 0, INT64_MAX, &space, NULL) ||
		   space < SPACE_BYTES || !json_is_true(json_object_get(answer, "inodes"))) {
		check_add(check, i, "checkpoint", CHECK_FAULT,
			  "free some space, or use another directory", "%s has %lld MiB free%s",
			  dir, (long long)(space >> 20),
			  json_is_true(json_object_get(answer, "inodes")) ? ""
									  : " and no free inode");
	} else {
		check_add(check, i, "checkpoint", CHECK_OK, NULL, "%s: %lld GiB free%s", dir,
			  (long long)(space >> 30),
			  check->count > 1 ? ", shared by all nodes" : "");
	}
	free(others);
}

const struct check_probe probe_checkpoint = {"checkpoint", .collect = collect, .run = run,
					     .judge_node = judge_node};
