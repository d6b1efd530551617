/* SPDX-License-Identifier: BSD-3-Clause */
/* The variables of a PBS job that is submitted again. qsub -v changes values with quotes,
 * backslashes or newlines, and drops functions; each generation would change them once more. So the
 * script itself sets those: its copy gets one line for each, and later generations submit that copy
 * as it is. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "run/requeue.h"

#define ENVIRON_MAX (8 << 20)
#define FUNCTION "BASH_FUNC_"

struct env *requeue_script_environment(const struct env *env)
{
	const char *job = env_get(env, "PBS_JOBID"), *same;
	char path[40], *text = NULL;
	size_t size = 0;
	struct env *made = NULL;

	snprintf(path, sizeof path, "/proc/%d/environ", (int)getsid(0));
	if (!file_read(path, ENVIRON_MAX, &text, &size, NULL))
		made = env_new();
	for (char *at = text, *end; made && at < text + size; at = end + 1) {
		char *value = strchr(at, '=');

		end = at + strlen(at);
		if (!value)
			continue;
		*value = '\0';
		env_set(made, at, value + 1, ENV_FROM_USER, NULL, NULL);
	}
	free(text);
	same = made ? env_get(made, "PBS_JOBID") : NULL;
	if (job && same && !strcmp(job, same))
		return made;
	env_free(made); /* another session, or a container's own processes */
	return env_copy(env);
}

static bool consists_of(const char *text, const char *others)
{
	for (; *text; text++)
		if (!isalnum((unsigned char)*text) && !strchr(others, *text))
			return false;
	return true;
}

bool requeue_script_is_plain(const char *name, const char *value)
{
	return !isdigit((unsigned char)*name) && consists_of(name, "_") &&
	       consists_of(value, "_./:@%+=-");
}

static int add_text(struct bytes *lines, const char *text)
{
	return bytes_add(lines, text, strlen(text));
}

/* Within single quotes a shell reads every byte as it is, except the quote. */
static int add_quoted(struct bytes *lines, const char *text)
{
	int rc = 0;

	for (; !rc && *text; text++)
		rc = *text == '\'' ? add_text(lines, "'\\''") : bytes_add(lines, text, 1);
	return rc;
}

bool requeue_script_add(struct bytes *lines, const char *name, const char *value)
{
	char function[256];
	size_t size = strlen(name);

	if (requeue_script_is_plain(name, ""))
		return !add_text(lines, "export ") && !add_text(lines, name) &&
		       !add_text(lines, "='") && !add_quoted(lines, value) &&
		       !add_text(lines, "'\n");
	if (strncmp(name, FUNCTION, strlen(FUNCTION)) != 0 || size < strlen(FUNCTION) + 3 ||
	    strcmp(name + size - 2, "%%") != 0 || strncmp(value, "() {", 4) != 0)
		return true; /* no shell can have set it */
	snprintf(function, sizeof function, "%.*s", (int)(size - strlen(FUNCTION) - 2),
		 name + strlen(FUNCTION));
	if (!consists_of(function, "_.:+-"))
		return true;
	return !add_text(lines, "[ -z \"${BASH_VERSION-}\" ] || { eval '") &&
	       !add_text(lines, function) && !add_text(lines, " ") && !add_quoted(lines, value) &&
	       !add_text(lines, "'; export -f -- ") && !add_text(lines, function) &&
	       !add_text(lines, "; }\n");
}

static bool is_shell(const char *path)
{
	static const char *const shells[] = {"sh",  "bash",  "dash", "ash",
					     "ksh", "ksh93", "mksh", "zsh"};
	const char *name = strrchr(path, '/');

	for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
		if (!strcmp(name ? name + 1 : path, shells[i]))
			return true;
	return false;
}

bool requeue_script_is_shell(const char *script)
{
	char line[600] = "", link[40], *next = line, *program, *argument;

	if (strncmp(script, "#!", 2) != 0) {
		snprintf(link, sizeof link, "/proc/%d/exe", (int)getsid(0));
		return readlink(link, line, sizeof line - 1) > 0 && is_shell(line);
	}
	snprintf(line, sizeof line, "%.*s", (int)strcspn(script, "\n"), script);
	next += 2 + strspn(line + 2, " \t");
	program = strsep(&next, " \t");
	argument = next ? next + strspn(next, " \t") : program;
	return is_shell(program) || (!strcmp(program, "/usr/bin/env") && is_shell(argument));
}

int requeue_script_insert(const struct bytes *lines, char **script, size_t *size)
{
	const char begin[] = "# berth run --requeue: variables of the job that qsub would change\n";
	size_t first = strncmp(*script, "#!", 2) ? 0 : strcspn(*script, "\n");
	struct bytes made = {0};
	char *copy = NULL;

	first += (*script)[first] == '\n';
	if (!bytes_add(&made, *script, first) && !bytes_add(&made, begin, sizeof begin - 1) &&
	    !bytes_add(&made, lines->data, lines->size) &&
	    !bytes_add(&made, *script + first, *size - first))
		copy = bytes_copy(made.data, made.size);
	if (copy) {
		free(*script);
		*script = copy;
		*size = made.size;
	}
	bytes_free(&made);
	return copy ? 0 : -1;
}
