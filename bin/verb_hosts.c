/* SPDX-License-Identifier: BSD-3-Clause */
/* berth hosts: expand a host list or a node file. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "hostlist/hostlist.h"
#include "verb.h"

struct options {
	const char *expr, *nodefile;
	int count, slots, compress;
};

enum { KEY_COUNT = 0x100, KEY_SLOTS, KEY_COMPRESS };

static const struct argp_option option_table[] = {
	{"nodefile", 'f', "FILE", 0, "Read a node file: a host a line, repeats are slots", 0},
	{"count", KEY_COUNT, NULL, 0, "Print the number of hosts only", 0},
	{"slots", KEY_SLOTS, NULL, 0, "Print the slots of each host beside it", 0},
	{"compress", KEY_COMPRESS, NULL, 0, "Print the hosts as one host list", 0},
	{0},
};

static void refuse(const struct argp_state *state, const char *text)
{
	struct error err;

	error_set(&err, ERR_USAGE, "%s", text);
	arguments_refuse(state, &err);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct options *options = state->input;

	switch (key) {
	case 'f':
		options->nodefile = arg;
		return 0;
	case KEY_COUNT:
		options->count = 1;
		return 0;
	case KEY_SLOTS:
		options->slots = 1;
		return 0;
	case KEY_COMPRESS:
		options->compress = 1;
		return 0;
	case ARGP_KEY_ARG:
		if (options->expr)
			refuse(state, "one host list only; join several with commas");
		options->expr = arg;
		return 0;
	case ARGP_KEY_END:
		if (!options->expr == !options->nodefile)
			refuse(state, "give a host list or --nodefile FILE, one of them");
		if (options->count + options->slots + options->compress > 1)
			refuse(state, "give one of --count, --slots and --compress");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int print_hosts(const struct options *options, const struct hosts *hosts)
{
	if (options->count) {
		printf("%zu\n", hosts->count);
	} else if (options->compress) {
		char *text = hostlist_compress((const char *const *)hosts->names, hosts->count);

		if (!text)
			return -1;
		printf("%s\n", text);
		free(text);
	} else {
		for (size_t i = 0; i < hosts->count; i++)
			if (options->slots)
				printf("%s %d\n", hosts->names[i], hosts->slots[i]);
			else
				printf("%s\n", hosts->names[i]);
	}
	return fflush(stdout) || ferror(stdout) ? -1 : 0;
}

int verb_hosts(int argc, char **argv)
{
	static const struct argp argp = {
		option_table,
		parse,
		"EXPR\n--nodefile FILE",
		"Expand a host list (\"n[01-03],x[0-1]\") or a node file, a host a line.",
		NULL,
		NULL,
		NULL};
	struct options options = {0};
	struct hosts hosts = {0};
	struct error err = {0};

	arguments_parse(&argp, argc, argv, 0, &options);
	int rc = options.nodefile ? nodefile_read(options.nodefile, &hosts, &err)
				  : hostlist_expand(options.expr, &hosts, &err);

	if (rc)
		return verb_fail(&err);
	rc = print_hosts(&options, &hosts);
	hosts_free(&hosts);
	if (rc) {
		error_set(&err, ERR_IO, "cannot write to standard output");
		return verb_fail(&err);
	}
	return 0;
}
