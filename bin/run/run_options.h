/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of berth run; berth train takes them too. */
#ifndef BERTH_BIN_RUN_RUN_OPTIONS_H
#define BERTH_BIN_RUN_RUN_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

#include "controller/job.h"
#include "options.h"

/* What the options fill in; zero-initialise, then run_options_default. Strings point into argv. */
struct run_options {
	struct options shared;	   /* ranks, GPUs, cores, hosts, network: options.h */
	int nodes;		   /* -N; 0: all of the allocation */
	const char *master_addr;   /* NULL: chosen by the plan; not with --nnodes */
	const char *rdzv_endpoint; /* "HOST:PORT", with --nnodes only */
	bool has_node_rank, has_start_timeout;
	const char *launcher; /* NULL: the one that fits */
	const char *log_dir, *report;
	int port; /* MASTER_PORT; 0: a free one */
	bool port_hold, label, dry_run, json, quiet, verbose;
	enum job_pmix pmix;
	int node_timeout_ms, start_timeout_ms;
	int fan_out;			     /* 0: the default */
	int hang_timeout_ms;		     /* 0: none */
	int max_restarts, spares, min_nodes; /* 0: none, none, all */
	const char *end_time;		     /* Unix seconds or "+TIME"; NULL: the scheduler's */
	int64_t warn_before_ms;		     /* 0: no warning */
	int warn_signal;		     /* 0: none */
	bool requeue;
	int max_requeues;
	const char **env; /* "NAME=VALUE", env_count of them; malloced array */
	size_t env_count;
};

void run_options_default(struct run_options *options);
/* For a parser's end: check --nnodes, --node-rank, --rdzv-endpoint and --master-addr against each
 * other and pass them on to shared. Does not return if they conflict. */
void run_options_by_hand(const struct argp_state *state, struct run_options *options);
void run_options_free(struct run_options *options);

/* An argp child that has options_argp as its own:
 *	case ARGP_KEY_INIT: state->child_inputs[0] = &mine->run; */
extern const struct argp run_options_argp;

#endif
