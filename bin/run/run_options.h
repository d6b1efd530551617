/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of berth run; berth train takes them too. */
#ifndef BERTH_BIN_RUN_RUN_OPTIONS_H
#define BERTH_BIN_RUN_RUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "run/attempts.h"
#include "options.h"
#include "roles/role_options.h"

/* In the order of the words of --collapse. */
enum run_collapse { RUN_COLLAPSE_AUTO, RUN_COLLAPSE_ON, RUN_COLLAPSE_OFF };

/* What the options fill in: zero-initialise it, then call run_options_default. Strings point into
 * argv. The controller gets launch and job; run_prepare and run_program add the members that are
 * not options. */
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
	const char *launcher; /* NULL: the first that fits */
	const char *report;
	enum run_collapse collapse;
	bool pty, label, dry_run, json, quiet, verbose, nested;
	const char *end_time; /* Unix seconds or "+TIME"; NULL: the scheduler's */
	bool requeue;
	int max_requeues;
	const char **env; /* "NAME=VALUE", env_count of them; malloced array */
	size_t env_count;
	struct role_options roles;
};

void run_options_default(struct run_options *options);
/* After all options are read: check --nnodes, --node-rank, --rdzv-endpoint and --master-addr
 * against each other and pass them on to shared. -ERR_USAGE if they conflict. */
int run_options_by_hand(struct run_options *options, struct error *err);
/* The same for options that would have no effect together, of berth run and berth train. */
int run_options_conflicts(const struct run_options *options, struct error *err);
/* The same for options of the job that roles have themselves, or that need one program. */
int run_options_roles(const struct run_options *options, struct error *err);
void run_options_free(struct run_options *options);

/* They fill a struct run_options; its shared is filled by options_table. */
extern const struct arguments_option run_options_table[];
/* --master-addr, --nnodes, --node-rank, --rdzv-endpoint, --port; they fill a struct run_options. */
extern const struct arguments_option run_rendezvous_table[];

#endif
