/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/number.h"
#include "train/checkpoint/lease.h"

#define LINE_MAX_BYTES 4096

/* ---- names ---- */

int64_t checkpoint_dir_step_of(const char *name)
{
	int64_t step = 0;
	const char *at = name + 5;

	if (strncmp(name, "step-", 5))
		return -1;
	for (; *at >= '0' && *at <= '9' && step <= CHECKPOINT_STEP_MAX; at++)
		step = step * 10 + (*at - '0');
	return at >= name + 13 && !strcmp(at, ".safetensors") ? step : -1;
}

const char *checkpoint_dir_name_of(int64_t step, char name[CHECKPOINT_NAME_BYTES])
{
	snprintf(name, CHECKPOINT_NAME_BYTES, "step-%08" PRId64 ".safetensors", step);
	return name;
}

char *checkpoint_dir_path_of(const char *directory, int64_t step)
{
	char name[CHECKPOINT_NAME_BYTES];

	return text_format("%s/%s", directory, checkpoint_dir_name_of(step, name));
}

static int newest_first(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x < y) - (x > y);
}

static int is_checkpoint(const struct dirent *entry)
{
	return checkpoint_dir_step_of(entry->d_name) >= 0;
}

int64_t *checkpoint_dir_steps(const char *directory, size_t *count, struct error *err)
{
	struct dirent **entries;
	int n = scandir(directory, &entries, is_checkpoint, NULL);
	int64_t *steps;

	*count = 0;
	if (n < 0) {
		error_set(err, ERR_INPUT, "cannot read --ckpt %s: %s", directory, strerror(errno));
		return NULL;
	}
	steps = malloc(((size_t)n + 1) * sizeof *steps);
	for (int i = 0; i < n; i++) {
		if (steps)
			steps[(*count)++] = checkpoint_dir_step_of(entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	if (steps)
		qsort(steps, *count, sizeof *steps, newest_first);
	else
		error_memory(err, "the list of checkpoints");
	return steps;
}

/* ---- latest and best ---- */

static void __attribute__((format(printf, 2, 3)))
report_skipped(const struct checkpoint_sink *sink, const char *format, ...)
{
	char text[1024] = "warning: ";
	size_t level = strlen(text);
	va_list ap;

	if (!sink)
		return;
	va_start(ap, format);
	vsnprintf(text + level, sizeof text - level, format, ap);
	va_end(ap);
	sink->note_skipped(sink->context, text);
}

/* Read the first line of directory/name, malloced; *text is NULL if there is no such file. */
static int read_line(const char *directory, const char *name, char **text, struct error *err)
{
	char *path = text_format("%s/%s", directory, name);
	size_t size;
	int rc = 0;

	*text = NULL;
	if (!path)
		return error_memory(err, "a file's name");
	if (!access(path, F_OK) || errno != ENOENT)
		rc = file_read(path, LINE_MAX_BYTES, text, &size, err);
	if (*text)
		(*text)[strcspn(*text, "\n")] = 0;
	free(path);
	return rc;
}

static int write_line(const char *directory, const char *name, const char *line,
		      struct lease *lease, struct error *err)
{
	char *path = text_format("%s/%s", directory, name), *aside = NULL;
	int rc, fd;

	if (!path)
		return error_memory(err, "a file's name");
	fd = file_create_temp(path, 0666, &aside);
	rc = fd < 0 ? error_set(err, ERR_OUTPUT, "cannot create %s: %m", path)
		    : lease_commit(lease, fd, file_write_all(fd, line, strlen(line)), aside, path,
				   err);
	free(aside);
	free(path);
	return rc;
}

int64_t checkpoint_dir_latest(const char *directory, const struct checkpoint_sink *sink)
{
	struct error err;
	char *text;
	int64_t step = -1;

	if (read_line(directory, "latest", &text, &err))
		report_skipped(sink, "%s", err.text);
	else if (text && (step = checkpoint_dir_step_of(text)) < 0)
		report_skipped(sink,
			       "%.300s/latest names '%.60s', which is not a checkpoint; checking "
			       "all files",
			       directory, text);
	free(text);
	return step;
}

int checkpoint_dir_set_latest(const char *directory, int64_t step, struct lease *lease,
			      struct error *err)
{
	char line[CHECKPOINT_NAME_BYTES + 1], name[CHECKPOINT_NAME_BYTES];

	snprintf(line, sizeof line, "%s\n", checkpoint_dir_name_of(step, name));
	return write_line(directory, "latest", line, lease, err);
}

/* Do both files exist, and is the first at least as new, by the file system's clock? */
static bool is_as_new(const char *directory, const char *first, const char *second)
{
	struct stat one, two;
	int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	bool exist = fd >= 0 && !fstatat(fd, first, &one, 0) && !fstatat(fd, second, &two, 0);

	if (fd >= 0)
		close(fd);
	return exist && (one.st_mtim.tv_sec > two.st_mtim.tv_sec ||
			 (one.st_mtim.tv_sec == two.st_mtim.tv_sec &&
			  one.st_mtim.tv_nsec >= two.st_mtim.tv_nsec));
}

bool checkpoint_dir_model_is_newer(const char *directory, int64_t step)
{
	char name[CHECKPOINT_NAME_BYTES];

	return is_as_new(directory, "model.safetensors", checkpoint_dir_name_of(step, name));
}

int64_t *checkpoint_dir_resume_order(const char *directory, const struct checkpoint_sink *sink,
				     size_t *count, struct error *err)
{
	int64_t latest = checkpoint_dir_latest(directory, sink), *aside;
	int64_t *steps = checkpoint_dir_steps(directory, count, err);
	size_t at = 0, fresh = 0, old = 0;
	char name[CHECKPOINT_NAME_BYTES];

	while (steps && at < *count && steps[at] != latest)
		at++;
	if (steps && latest >= 0 && at == *count)
		report_skipped(sink,
			       "%.300s/latest names step %" PRId64
			       ", which is missing; checking all files",
			       directory, latest);
	if (!steps || at == *count || !at)
		return steps;
	aside = malloc(at * sizeof *aside);
	if (!aside) {
		free(steps);
		error_memory(err, "the list of checkpoints");
		return NULL;
	}
	for (size_t i = 0; i < at; i++)
		if (is_as_new(directory, checkpoint_dir_name_of(steps[i], name), "latest"))
			steps[fresh++] = steps[i];
		else
			aside[old++] = steps[i];
	memmove(steps + fresh, steps + at, (*count - at) * sizeof *steps);
	memcpy(steps + *count - old, aside, old * sizeof *steps);
	free(aside);
	return steps;
}

int64_t checkpoint_dir_best(const char *directory, double *acc1)
{
	static const char between[] = " Acc@1 ";
	char *text, *space;
	int64_t step = -1;

	read_line(directory, "best", &text, NULL);
	space = text ? strstr(text, between) : NULL;
	if (space) {
		*space = 0;
		step = checkpoint_dir_step_of(text);
		if (number_double("best", space + sizeof between - 1, 0, 100, acc1, NULL))
			step = -1;
	}
	free(text);
	return step;
}

int checkpoint_dir_set_best(const char *directory, int64_t step, double acc1, struct lease *lease,
			    struct error *err)
{
	char line[CHECKPOINT_NAME_BYTES + 40], name[CHECKPOINT_NAME_BYTES];

	/* As many digits as needed to compare the same number again. */
	snprintf(line, sizeof line, "%s Acc@1 %.17g\n", checkpoint_dir_name_of(step, name), acc1);
	return write_line(directory, "best", line, lease, err);
}

/* ---- space ---- */

int checkpoint_dir_has_space(const char *directory, uint64_t size_bytes, struct error *err)
{
	struct statvfs space;

	/* Some network file systems report 0 of 0. */
	if (statvfs(directory, &space) || !space.f_blocks)
		return 0;
	uint64_t unit = space.f_frsize ? space.f_frsize : space.f_bsize;
	uint64_t free_bytes = unit * space.f_bavail;

	if (free_bytes >= size_bytes)
		return 0;
	return error_set(err, ERR_IO,
			 "%s: %s: a checkpoint needs %.1f MB, but %.1f MB are free. Earlier "
			 "checkpoints are unchanged",
			 directory, strerror(ENOSPC), (double)size_bytes * 1e-6,
			 (double)free_bytes * 1e-6);
}

void checkpoint_dir_explain_full(const char *directory, int64_t keep, struct error *err)
{
	bool quota = strstr(err->text, strerror(EDQUOT));
	char seen[512] = "", often[80] = "";
	size_t count = 0, used = strlen(err->text);
	double bytes = 0;
	struct stat info;

	if (!quota && !strstr(err->text, strerror(ENOSPC)))
		return;
	int64_t *steps = checkpoint_dir_steps(directory, &count, NULL);

	for (size_t i = 0; steps && i < count; i++) {
		char *path = checkpoint_dir_path_of(directory, steps[i]);

		if (path && !stat(path, &info))
			bytes += (double)info.st_size;
		free(path);
	}
	free(steps);
	if (count)
		snprintf(seen, sizeof seen, "; in %.300s, %zu checkpoint%s use%s %.1f MB",
			 directory, count, count == 1 ? "" : "s", count == 1 ? "s" : "",
			 bytes * 1e-6);
	if (!keep)
		snprintf(often, sizeof often,
			 ", and set --keep 2 to remove older ones automatically");
	snprintf(err->text + used, sizeof err->text - used,
		 "%s. Free space there (see %s; you may remove all checkpoints but the newest%s), "
		 "or choose another directory with --ckpt and pass the newest checkpoint to "
		 "--resume",
		 *seen ? seen : "; none of the space is used by checkpoints",
		 quota ? "quota -s" : "df -h", often);
}

/* ---- what killed writers left ---- */

/* Cut ".N" off the end of name: is N a number of at least min? */
static bool cut_number(char *name, int min, int *out)
{
	char *dot = strrchr(name, '.');

	if (!dot || number_int("it", dot + 1, min, INT32_MAX, out, NULL))
		return false;
	*dot = 0;
	return true;
}

/* The pid in "NAME.PID.I", where NAME is a file that berth writes here (.lease: older versions
 * did); 0: another name. */
static pid_t pid_of_writer(const char *name)
{
	static const char *const names[] = {"latest", "best", "model.safetensors", ".lease"};
	char file[NAME_MAX + 1];
	int i, pid;

	snprintf(file, sizeof file, "%s", name);
	if (!cut_number(file, 0, &i) || !cut_number(file, 1, &pid))
		return 0;
	if (checkpoint_dir_step_of(file) >= 0)
		return (pid_t)pid;
	for (size_t k = 0; k < sizeof names / sizeof *names; k++)
		if (!strcmp(file, names[k]))
			return (pid_t)pid;
	return 0;
}

int checkpoint_dir_remove_stale(const char *directory, struct lease *lease)
{
	DIR *dir = opendir(directory);
	struct dirent *entry;
	struct error ignored;
	int removed = 0;

	while (dir && (entry = readdir(dir))) {
		pid_t pid = pid_of_writer(entry->d_name);

		if (pid > 0 && (pid == getpid() || (kill(pid, 0) && errno == ESRCH)) &&
		    !lease_check(lease, &ignored))
			removed += !unlinkat(dirfd(dir), entry->d_name, 0);
	}
	if (dir)
		closedir(dir);
	return removed;
}

/* ---- pruning ---- */

/* Read the step that directory's file name holds; -1: there is no such file. Return false, and
 * report it, if it is unreadable: the checkpoint it names must stay, but is unknown. */
static bool read_named_step(const char *directory, const char *name, int64_t *step,
			    const struct checkpoint_sink *sink)
{
	struct error err = {0};
	char *text;
	bool known = !read_line(directory, name, &text, &err);

	*step = -1;
	if (text) {
		text[strcspn(text, " ")] = 0;
		*step = checkpoint_dir_step_of(text);
		known = *step >= 0;
	}
	if (!known)
		report_skipped(sink,
			       "not removing old checkpoints: cannot tell which one %.300s/%s "
			       "names%s%.100s",
			       directory, name, err.code ? ": " : "", err.text);
	free(text);
	return known;
}

void checkpoint_dir_prune(const char *directory, const struct graph *graph, int64_t step,
			  int64_t keep, struct lease *lease, const struct checkpoint_sink *sink)
{
	struct train_state state;
	struct error err = {0};
	size_t count;
	int64_t latest, best, kept = 0, *steps;

	if (keep <= 0)
		return;
	if (!read_named_step(directory, "latest", &latest, sink) ||
	    !read_named_step(directory, "best", &best, sink))
		return;
	steps = checkpoint_dir_steps(directory, &count, &err);
	if (!steps)
		report_skipped(sink, "%s", err.text);
	for (size_t i = 0; steps && i < count; i++) {
		char *path = steps[i] <= step ? checkpoint_dir_path_of(directory, steps[i]) : NULL;

		if (path && !checkpoint_check(path, graph, false, &state, NULL) &&
		    state.step == steps[i] && ++kept > keep && steps[i] != latest &&
		    steps[i] != best && !lease_check(lease, &err) && unlink(path) &&
		    errno != ENOENT)
			report_skipped(sink, "cannot remove %.300s: %s", path, strerror(errno));
		free(path);
	}
	free(steps);
}
