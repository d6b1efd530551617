/* SPDX-License-Identifier: BSD-3-Clause */
#include "arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

/* getopt and argp write to stderr, in words of their own, and end the process. glibc lets stderr be
 * set: what they write is kept here until the process ends or the command line is read. */
static struct {
	FILE *people; /* the real stderr; NULL while nothing is kept back */
	char *text;
	size_t size;
	const char *name; /* "berth run" */
} capture;

static FILE *open_capture(void)
{
	FILE *mine = stderr;

	stderr = capture.people;
	capture.people = NULL;
	return mine;
}

static void print_error(const char *text, const char *name)
{
	fprintf(stderr, "berth: %s (%s --help lists the options)\n", text, name);
}

/* At the end of the process: argp has ended it. Its first line tells what is wrong, and begins with
 * the program's name. */
static void print_captured(void)
{
	if (!capture.people)
		return;
	fclose(open_capture());

	const char *slash = strrchr(capture.name, '/'), *name = slash ? slash + 1 : capture.name;
	char *text = capture.text, *colon = text ? strstr(text, ": ") : NULL;

	/* getopt has the program's path there, argp its name. */
	if (colon && colon >= text + strlen(name) &&
	    !memcmp(colon - strlen(name), name, strlen(name)))
		text = colon + 2;
	if (text && *text) {
		text[strcspn(text, "\n")] = 0;
		print_error(text, name);
	}
	free(capture.text);
}

void arguments_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input)
{
	FILE *mine = open_memstream(&capture.text, &capture.size);

	argp_err_exit_status = ERR_USAGE;
	/* Without memory or a place for tell, argp's own words do. */
	if (mine && !atexit(print_captured)) {
		capture.name = argv[0];
		capture.people = stderr;
		stderr = mine;
	}
	argp_parse(argp, argc, argv, flags, NULL, input);
	if (capture.people)
		open_capture();
	if (mine)
		fclose(mine);
	free(capture.text);
	capture.text = NULL;
}

void arguments_refuse(const struct argp_state *state, const struct error *err)
{
	if (capture.people) {
		fclose(open_capture());
		free(capture.text);
		capture.text = NULL;
	}
	print_error(err->text, state->name);
	exit(ERR_USAGE);
}

void arguments_number(const struct argp_state *state, const char *name, const char *text, int max,
		      int *out)
{
	struct error err = {0};

	if (number_int(name, text, 1, max, out, &err))
		arguments_refuse(state, &err);
}

int arguments_choice(const struct argp_state *state, const char *name, const char *text,
		     const char *const *choices, const char *expected)
{
	struct error err = {0};

	for (int i = 0; choices[i]; i++)
		if (!strcmp(text, choices[i]))
			return i;
	error_set(&err, ERR_USAGE, "%s '%.200s': expected %s", name, text, expected);
	arguments_refuse(state, &err);
}
