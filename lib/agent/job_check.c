/* SPDX-License-Identifier: BSD-3-Clause */
/* What can be said before anything is started. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/job.h"

static int check_file(const char *path, bool *is_there, bool *is_folder)
{
	struct stat status;

	if (stat(path, &status))
		return -1;
	*is_there = true;
	*is_folder = S_ISDIR(status.st_mode);
	return S_ISREG(status.st_mode) && !access(path, X_OK) ? 0 : -1;
}

int job_check_program(const char *name, const struct env *env, struct error *err)
{
	const char *path = env_get(env, "PATH"), *at = path ? path : "/usr/local/bin:/bin:/usr/bin";
	bool is_there = false, is_folder = false;

	if (!*name)
		return error_set(err, ERR_INPUT,
				 "there is no program: PROGRAM is empty; is a variable unset?");
	if (strchr(name, '/')) {
		if (!check_file(name, &is_there, &is_folder))
			return 0;
	} else {
		do {
			size_t size = strcspn(at, ":");
			char file[4096];

			snprintf(file, sizeof file, "%.*s%s%s", (int)size, size ? at : ".", "/",
				 name);
			if (!size)
				snprintf(file, sizeof file, "./%s", name);
			if (!check_file(file, &is_there, &is_folder))
				return 0;
			at += size;
		} while (*at++);
	}
	if (is_there && is_folder)
		return error_set(err, ERR_UNAVAILABLE,
				 "%s is a folder, which may not be executed; name the program in it",
				 name);
	if (is_there)
		return error_set(
			err, ERR_UNAVAILABLE,
			"the program %s is there but may not be executed; chmod +x it, or put "
			"its interpreter before it",
			name);
	return error_set(err, ERR_INPUT, "there is no program %s%s", name,
			 strchr(name, '/') ? ""
					   : " in PATH; a file in this folder is named ./FILE");
}
