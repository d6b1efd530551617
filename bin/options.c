/* SPDX-License-Identifier: BSD-3-Clause */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

enum option_key {
	OPTION_RANKS_PER_NODE = 0x100,
	OPTION_GPUS_PER_RANK,
	OPTION_GPUS_VISIBLE,
	OPTION_ALL_CORES,
	OPTION_IFACE,
	OPTION_SUBNET,
	OPTION_HOSTS,
	OPTION_HOSTFILE,
};

/* Far above what any node has; only keeps sums within an int. */
#define RANKS_MAX 1000000
#define GPUS_MAX 1024

static const struct argp_option option_table[] = {
	{NULL, 0, NULL, 0, "Ranks and what they get", 10},
	{"ranks", 'n', "N", 0,
	 "Ranks of the whole job (default: one a GPU; without GPUs one a slot, at most the cores)",
	 10},
	{"ranks-per-node", OPTION_RANKS_PER_NODE, "K", 0, "Ranks on each node", 10},
	{"nproc-per-node", OPTION_RANKS_PER_NODE, NULL, OPTION_ALIAS, NULL, 10},
	{"gpus-per-rank", OPTION_GPUS_PER_RANK, "K", 0, "GPUs of each rank", 10},
	{"gpus-visible", OPTION_GPUS_VISIBLE, "all|own", 0,
	 "What a rank sees: all GPUs of the plan on its node (default), or its own only", 10},
	{"all-cores", OPTION_ALL_CORES, NULL, 0,
	 "Deal out the cores that would stay free (those near no used GPU)", 10},
	{NULL, 0, NULL, 0, "Nodes and network", 11},
	{"hosts", OPTION_HOSTS, "EXPR", 0, "The nodes, as a host list: gpu[01-04]", 11},
	{"hostfile", OPTION_HOSTFILE, "FILE", 0, "The nodes, from a file: a host a line, once", 11},
	{"iface", OPTION_IFACE, "NAME", 0, "The head's interface at which ranks meet", 11},
	{"subnet", OPTION_SUBNET, "CIDR", 0, "The subnet in which ranks meet: 10.1.0.0/16", 11},
	{NULL, 0, NULL, 0, NULL, 0},
};

bool options_gpus_visible(const struct argp_state *state, const char *text)
{
	static const char *const choices[] = {"all", "own", NULL};

	return arguments_choice(state, "--gpus-visible", text, choices, "all or own") == 1;
}

static error_t option_parse(int key, char *text, struct argp_state *state)
{
	struct options *options = state->input;
	struct plan_request *plan = options ? &options->plan : NULL;

	switch (key) {
	case 'n':
		arguments_number(state, "--ranks", text, RANKS_MAX, &plan->ranks);
		return 0;
	case OPTION_RANKS_PER_NODE:
		arguments_number(state, "--ranks-per-node", text, RANKS_MAX, &plan->ranks_per_node);
		return 0;
	case OPTION_GPUS_PER_RANK:
		arguments_number(state, "--gpus-per-rank", text, GPUS_MAX, &plan->gpus_per_rank);
		return 0;
	case OPTION_GPUS_VISIBLE:
		plan->gpus_visible_own = options_gpus_visible(state, text);
		return 0;
	case OPTION_ALL_CORES:
		plan->all_cores = true;
		return 0;
	case OPTION_IFACE:
		plan->iface = text;
		return 0;
	case OPTION_SUBNET:
		plan->subnet = text;
		return 0;
	case OPTION_HOSTS:
		options->alloc.hosts = text;
		return 0;
	case OPTION_HOSTFILE:
		options->alloc.hostfile = text;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp options_argp = {option_table, option_parse, NULL, NULL, NULL, NULL, NULL};
