/* SPDX-License-Identifier: BSD-3-Clause */
/* berth hosts: expand a host list or a node file. */
#include <stdio.h>
#include <stdlib.h>

#include "arguments.h"
#include "hostlist/hostlist.h"
#include "verb.h"

struct arguments {
	const char *expr, *nodefile;
	bool count, slots, compress;
};

#define HOSTS(member) offsetof(struct arguments, member)

static const struct arguments_option options[] = {
	{"nodefile", "FILE", "Read a node file with one host per line; repeated hosts add slots",
	 ARGUMENTS_TEXT, HOSTS(nodefile), .letter = 'f'},
	{"count", NULL, "Print the number of hosts only", ARGUMENTS_FLAG, HOSTS(count)},
	{"slots", NULL, "Print each host's slots next to it", ARGUMENTS_FLAG, HOSTS(slots)},
	{"compress", NULL, "Print the hosts as one host list", ARGUMENTS_FLAG, HOSTS(compress)},
	{0},
};

static int set_expr(const char *text, void *out, struct error *err)
{
	const char **expr = out;

	if (*expr)
		return error_set(err, ERR_USAGE,
				 "expected one host list; join several with commas");
	*expr = text;
	return 0;
}

static int check_arguments(void *input, struct error *err)
{
	const struct arguments *arguments = input;

	if (!arguments->expr == !arguments->nodefile)
		return error_set(err, ERR_USAGE, "give either a host list or --nodefile FILE");
	if (arguments->count + arguments->slots + arguments->compress > 1)
		return error_set(err, ERR_USAGE,
				 "give at most one of --count, --slots and --compress");
	return 0;
}

static int print_hosts(const struct arguments *arguments, const struct hosts *hosts,
		       struct error *err)
{
	if (arguments->count) {
		printf("%zu\n", hosts->count);
	} else if (arguments->compress) {
		char *text = hostlist_compress((const char *const *)hosts->names, hosts->count);

		if (!text)
			return error_memory(err, "the host list");
		printf("%s\n", text);
		free(text);
	} else {
		for (size_t i = 0; i < hosts->count; i++)
			if (arguments->slots)
				printf("%s %d\n", hosts->names[i], hosts->slots[i]);
			else
				printf("%s\n", hosts->names[i]);
	}
	return 0;
}

int verb_hosts(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{options}},
		.positional = {.type = ARGUMENTS_READ, .offset = HOSTS(expr), .read = set_expr},
		.check = check_arguments,
		.usage = "EXPR\n--nodefile FILE",
		.doc = "Expand a host list (\"n[01-03],x[0-1]\") or a node file to one host per "
		       "line.",
	};
	struct arguments arguments = {0};
	struct hosts hosts = {0};
	struct error err = {0};

	arguments_parse(&command, argc, argv, &arguments);
	int rc = arguments.nodefile ? nodefile_read(arguments.nodefile, false, &hosts, &err)
				    : hostlist_expand(arguments.expr, &hosts, &err);

	if (!rc)
		rc = print_hosts(&arguments, &hosts, &err);
	hosts_free(&hosts);
	return rc ? verb_fail(&err) : 0;
}
