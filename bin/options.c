/* SPDX-License-Identifier: BSD-3-Clause */
#include "options.h"

#include <stdlib.h>
#include <string.h>

/* Far above what any node has; only keeps sums within an int. */
#define RANKS_MAX 1000000
#define GPUS_MAX 1024
#define PLAN(member) offsetof(struct options, plan.member)
#define ALLOC(member) offsetof(struct options, alloc.member)

const struct arguments_option options_table[] = {
	{.type = ARGUMENTS_GROUP, .group = 10, .doc = "Ranks and what they get"},
	{"ranks", "N",
	 "Ranks of the whole job (default: one a GPU; without GPUs one a slot, at most the cores)",
	 ARGUMENTS_INT, PLAN(ranks), 1, RANKS_MAX, .letter = 'n'},
	{"ranks-per-node", "K", "Ranks on each node", ARGUMENTS_INT, PLAN(ranks_per_node), 1,
	 RANKS_MAX},
	{"nproc-per-node", .type = ARGUMENTS_ALIAS},
	{"gpus-per-rank", "K", "GPUs of each rank", ARGUMENTS_INT, PLAN(gpus_per_rank), 1,
	 GPUS_MAX},
	{"gpus-visible", "all|own",
	 "What a rank sees: all GPUs of the plan on its node (default), or its own only",
	 ARGUMENTS_BOOL, PLAN(gpus_visible_own), 1},
	{"all-cores", NULL, "Deal out the cores that would stay free (those near no used GPU)",
	 ARGUMENTS_FLAG, PLAN(all_cores)},
	{.type = ARGUMENTS_GROUP, .group = 11, .doc = "Nodes and network"},
	{"hosts", "EXPR", "The nodes, as a host list: gpu[01-04]", ARGUMENTS_TEXT, ALLOC(hosts)},
	{"hostfile", "FILE", "The nodes, from a file: a host a line, once", ARGUMENTS_TEXT,
	 ALLOC(hostfile)},
	{"iface", "NAME", "The head's interface at which ranks meet", ARGUMENTS_TEXT, PLAN(iface)},
	{"subnet", "CIDR", "The subnet in which ranks meet: 10.1.0.0/16", ARGUMENTS_TEXT,
	 PLAN(subnet)},
	{0},
};

int options_set_env(struct env *env, const char *const *texts, size_t count, struct error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++) {
		char *name = strdup(texts[i]);

		if (!name)
			return error_memory(err, "the environment");
		/* The parser has already checked for '='. */
		char *value = strchr(name, '=');

		*value++ = '\0';
		rc = env_set(env, name, value, ENV_FROM_OPTION, "--env", err);
		free(name);
	}
	return rc;
}
