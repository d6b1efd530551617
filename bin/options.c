/* SPDX-License-Identifier: BSD-3-Clause */
#include "options.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* Far above what any node has; only keeps sums within an int. */
#define GPUS_MAX 1024
#define PLAN(member) offsetof(struct plan_options, plan.member)
#define ALLOC(member) offsetof(struct plan_options, alloc.member)

const struct arguments_option options_table[] = {
	{.type = ARGUMENTS_GROUP, .group = 10, .doc = "Ranks and their resources"},
	{"ranks", "N",
	 "Start N ranks in the whole job (default: one per GPU; without GPUs one per slot, at most "
	 "one per core)",
	 ARGUMENTS_INT, PLAN(ranks), 1, OPTIONS_RANKS_MAX, .letter = 'n'},
	{"np", .type = ARGUMENTS_ALIAS, .hidden = true},
	{"ranks-per-node", "K", "Start K ranks on each node", ARGUMENTS_INT, PLAN(ranks_per_node),
	 1, OPTIONS_RANKS_MAX},
	{"nproc-per-node", .type = ARGUMENTS_ALIAS},
	{"nproc_per_node", .type = ARGUMENTS_ALIAS, .hidden = true},
	{"gpus-per-rank", "K", "Give each rank K GPUs; above 1, this implies --gpus-visible own",
	 ARGUMENTS_INT, PLAN(gpus_per_rank), 1, GPUS_MAX},
	{"gpus-visible", "all|own",
	 "GPUs that a rank sees: all of the plan on its node (default; its own is number "
	 "LOCAL_RANK, and peer-to-peer works), or its own only",
	 ARGUMENTS_BOOL, PLAN(gpus_visible_own), 1},
	{"all-cores", NULL,
	 "Also share out the cores of packages without a used GPU, which otherwise stay free",
	 ARGUMENTS_FLAG, PLAN(all_cores)},
	{.type = ARGUMENTS_GROUP, .group = 11, .doc = "Nodes and network"},
	{"hosts", "EXPR", "Use these nodes, a host list such as gpu[01-04], over ssh",
	 ARGUMENTS_TEXT, ALLOC(hosts)},
	{"hostfile", "FILE",
	 "Use the nodes in FILE, over ssh: one host per line, each once, optionally with slots=N",
	 ARGUMENTS_TEXT, ALLOC(hostfile)},
	{"iface", "NAME",
	 "Let ranks meet at this interface of the first node; lo if several nodes are one machine",
	 ARGUMENTS_TEXT, PLAN(iface)},
	{"subnet", "CIDR", "Let the ranks meet in this subnet, such as 10.1.0.0/16", ARGUMENTS_TEXT,
	 PLAN(subnet)},
	{0},
};

int options_add_env(const char ***list, size_t *count, const char *text, struct error *err)
{
	/* The environment of the ranks overrides these. */
	static const char *const fixed[] = {
		"RANK",	     "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE",
		"NODE_RANK", "MASTER_ADDR", "MASTER_PORT"};
	const char *equals = strchr(text, '=');
	const char **added;

	if (!equals || equals == text || strcspn(text, " \t\n") < (size_t)(equals - text))
		return error_set(err, ERR_USAGE, "--env '%.200s': expected NAME=VALUE", text);
	for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
		if (!strncmp(text, fixed[i], strlen(fixed[i])) && text[strlen(fixed[i])] == '=')
			return error_set(err, ERR_USAGE,
					 "--env %.200s: berth sets %s for each rank (see -n, "
					 "--master-addr, --port)",
					 text, fixed[i]);
	added = array_add(list, count, sizeof *added);
	if (!added)
		return error_memory(err, "--env");
	*added = text;
	return 0;
}
