/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks that are possible before anything is started. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "controller/job_internal.h"
#include "process/executable.h"
#include "process/logs.h"

/* What was found under the name; the best match of all directories in PATH. */
enum found { FOUND_NOTHING, FOUND_DIR, FOUND_FILE, FOUND_PROGRAM };

static enum found classify_path(const char *path)
{
	struct stat status;

	if (stat(path, &status))
		return FOUND_NOTHING;
	if (S_ISDIR(status.st_mode))
		return FOUND_DIR;
	return S_ISREG(status.st_mode) && !access(path, X_OK) ? FOUND_PROGRAM : FOUND_FILE;
}

/* Search as execvp does. path is filled in if a program is found. */
static enum found find(const char *name, const struct env *env, char *path, size_t size)
{
	const char *list = env_get(env, "PATH"), *at = list ? list : "/usr/local/bin:/bin:/usr/bin";
	enum found best = FOUND_NOTHING;

	if (!*name)
		return FOUND_NOTHING;
	if (strchr(name, '/')) {
		snprintf(path, size, "%s", name);
		return classify_path(path);
	}
	do {
		size_t length = strcspn(at, ":");
		enum found found;

		snprintf(path, size, "%.*s/%s", length ? (int)length : 1, length ? at : ".", name);
		found = classify_path(path);
		if (found == FOUND_PROGRAM)
			return found;
		/* Ignore a directory of that name in a directory of PATH. */
		if (found > best && found != FOUND_DIR)
			best = found;
		at += length;
	} while (*at++);
	return best;
}

int job_check_program(const char *name, const struct env *env, struct error *err)
{
	char path[4096], interpreter[300];

	if (!*name)
		return error_set(
			err, ERR_INPUT,
			"no program to run: PROGRAM is empty. Check for an unset variable.");
	switch (find(name, env, path, sizeof path)) {
	case FOUND_PROGRAM:
		if (!executable_lacks_interpreter(path, interpreter, sizeof interpreter))
			return 0;
		return error_set(err, ERR_INPUT,
				 "cannot start the program %s: its first line names the "
				 "interpreter %s, which is missing%s",
				 name, interpreter, executable_interpreter_hint(interpreter));
	case FOUND_FILE:
		return error_set(err, ERR_UNAVAILABLE,
				 "the program %s is not executable. Run chmod +x on it, or put its "
				 "interpreter before it.",
				 name);
	case FOUND_DIR:
		return error_set(err, ERR_UNAVAILABLE,
				 "%s is a directory. Name the program inside it.", name);
	default:
		return error_set(
			err, ERR_INPUT, "cannot find the program %s%s", name,
			strchr(name, '/')
				? ""
				: " in PATH. Write ./FILE for a file in the current directory.");
	}
}

void job_check_world_size(const char *program, const struct env *env, int world_size,
			  const struct job_sink *sink)
{
	char path[4096];

	if (world_size > 1 && find(program, env, path, sizeof path) == FOUND_PROGRAM &&
	    executable_uses_open_mpi(path))
		job_note(sink, LOG_WARNING,
			 "%s uses Open MPI: with --pmix off it runs as %d worlds of one rank each; "
			 "without that option, as one world of %d ranks",
			 program, world_size, world_size);
}

void job_check_logs(const char *log_dir, int world_size, const struct job_sink *sink)
{
	int lowest = -1;
	size_t count = logs_stale_ranks(log_dir, world_size, &lowest);

	if (count)
		job_note(sink, LOG_WARNING,
			 "an earlier run with more than %d rank%s left %zu log%s in %s, from "
			 "rank-%04d.log on, which this run does not change",
			 world_size, world_size == 1 ? "" : "s", count, count == 1 ? "" : "s",
			 log_dir, lowest);
}
