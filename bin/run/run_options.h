/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of berth run; berth train takes them too. */
#ifndef BERTH_BIN_RUN_RUN_OPTIONS_H
#define BERTH_BIN_RUN_RUN_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

#include "controller/attempts.h"
#include "options.h"

/* Keys of argp; verbs with an option of berth run's use its key. */
enum run_key {
	RUN_MASTER_ADDR = 0x200,
	RUN_RDZV_ENDPOINT,
	RUN_NNODES,
	RUN_NODE_RANK,
	RUN_PORT,
	RUN_PORT_HOLD,
	RUN_PER_NODE,
	RUN_LAUNCHER,
	RUN_LOG_DIR,
	RUN_LABEL,
	RUN_REPORT,
	RUN_NODE_TIMEOUT,
	RUN_START_TIMEOUT,
	RUN_FAN_OUT,
	RUN_DRY_RUN,
	RUN_JSON,
	RUN_PMIX,
	RUN_ENV,
	RUN_MAX_RESTARTS,
	RUN_SPARES,
	RUN_MIN_NODES,
	RUN_HANG_TIMEOUT,
	RUN_END_TIME,
	RUN_WARN_BEFORE,
	RUN_WARN_SIGNAL,
	RUN_REQUEUE,
	RUN_MAX_REQUEUES,
};

/* What the options fill in; zero-initialise, then run_options_default. Strings point into argv.
 * launch and job are what the controller gets: run_prepare and run_program add what is not an
 * option. */
struct run_options {
	struct options
		shared; /* ranks, GPUs, cores, hosts, network: options.h; plan.port: --port */
	struct launch_options launch;	 /* the timeouts, fan_out */
	struct job_request job;		 /* log_dir, pmix, port_hold, hang_timeout_ms, warn_* */
	struct attempts_policy restarts; /* all but own_program */
	int nodes;			 /* -N; 0: all of the allocation */
	const char *master_addr;	 /* NULL: chosen by the plan; not with --nnodes */
	const char *rdzv_endpoint;	 /* "HOST:PORT", with --nnodes only */
	bool has_node_rank, has_start_timeout;
	const char *launcher; /* NULL: the one that fits */
	const char *report;
	bool label, dry_run, json, quiet, verbose;
	const char *end_time; /* Unix seconds or "+TIME"; NULL: the scheduler's */
	bool requeue;
	int max_requeues;
	const char **env; /* "NAME=VALUE", env_count of them; malloced array */
	size_t env_count;
};

void run_options_default(struct run_options *options);
/* For a parser's end: check --nnodes, --node-rank, --rdzv-endpoint and --master-addr against each
 * other and pass them on to shared. Does not return if they conflict. */
void run_options_by_hand(const struct argp_state *state, struct run_options *options);
/* For parsers: the options from --nodes to --fan-out, and of the job's end. */
error_t run_options_parse_place(int key, char *text, struct argp_state *state,
				struct run_options *options);
void run_options_free(struct run_options *options);

/* An argp child that has options_argp as its own:
 *	case ARGP_KEY_INIT: state->child_inputs[0] = &mine->run; */
extern const struct argp run_options_argp;

#endif
