/* SPDX-License-Identifier: BSD-3-Clause */
#include "run/run_options.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "base/number.h"

#define BY_HAND_MS 600000 /* until all machines have been started */

static const struct argp_option run_table[] = {
	{"nodes", 'N', "N", 0, "Nodes to use (default: all of the allocation)", 11},
	{"master-addr", RUN_MASTER_ADDR, "ADDRESS", 0,
	 "Set MASTER_ADDR to this numeric address of the first node (default: the best one that "
	 "all nodes reach)",
	 11},
	{"nnodes", RUN_NNODES, "N", 0,
	 "By hand: this line is started on N machines, with --node-rank and --rdzv-endpoint", 11},
	{"node-rank", RUN_NODE_RANK, "R", 0,
	 "By hand: which machine this is, from 0; its ranks, program and options are the first "
	 "one's",
	 11},
	{"rdzv-endpoint", RUN_RDZV_ENDPOINT, "HOST:PORT", 0,
	 "By hand: wait for the other machines at this address of the first one", 11},
	{"port", RUN_PORT, "PORT", 0, "MASTER_PORT (default: a free one)", 11},
	{"port-hold", RUN_PORT_HOLD, "on|off", 0,
	 "Keep MASTER_PORT bound while rank 0 runs, so that nobody else takes it (default on); off "
	 "for programs that bind it without SO_REUSEADDR",
	 11},
	{"launcher", RUN_LAUNCHER, "NAME", 0,
	 "How agents are started: fork (this machine), srun (a Slurm job), prterun, mpirun, pals, "
	 "tm (a PBS job), ssh, hand (berth run on each machine), loopback (pretended nodes here); "
	 "default: what fits the allocation",
	 11},
	{"node-timeout", RUN_NODE_TIMEOUT, "TIME", 0,
	 "A node is lost when its agent is silent that long (default 8s)", 11},
	{"start-timeout", RUN_START_TIMEOUT, "TIME", 0,
	 "All agents must be there within this time (default 60s)", 11},
	{"fan-out", RUN_FAN_OUT, "K", 0, "Agents below one agent in the tree (default 32)", 11},
	{NULL, 0, NULL, 0, "After a failure", 15},
	{"max-restarts", RUN_MAX_RESTARTS, "R", 0,
	 "Start the ranks again, at most R times, when one of them, a node or the network has "
	 "failed",
	 15},
	{"spares", RUN_SPARES, "N", 0,
	 "Keep the last N nodes idle, to take the place of nodes that are lost or have failed "
	 "twice",
	 15},
	{"min-nodes", RUN_MIN_NODES, "N", 0,
	 "Without a spare go on with fewer nodes, at least N (default: as many as at first)", 15},
	{"hang-timeout", RUN_HANG_TIMEOUT, "TIME", 0,
	 "No step and no output of any rank for that long is a failure: the rank that is behind is "
	 "named, with stacks",
	 15},
	{NULL, 0, NULL, 0, "The ranks' surroundings", 12},
	{"per-node", RUN_PER_NODE, NULL, 0,
	 "One process a node, with PET_* set, for programs that start their own ranks (torchrun)",
	 12},
	{"env", RUN_ENV, "NAME=VALUE", 0, "Set a variable for the ranks (may be repeated)", 12},
	{"pmix", RUN_PMIX, "auto|on|off", 0,
	 "PMIx for MPI programs: auto goes on without where it is missing, on does not", 12},
	{NULL, 0, NULL, 0, "The job's end", 14},
	{"end-time", RUN_END_TIME, "UNIX|+TIME", 0,
	 "When the job's time is over: Unix seconds, or from now (+90m); default: BERTH_END_TIME, "
	 "or as "
	 "the scheduler says",
	 14},
	{"warn-before", RUN_WARN_BEFORE, "TIME", 0,
	 "That long before, BERTH_STOP_FILE appears (default 120s with --warn-signal, else no "
	 "warning)",
	 14},
	{"warn-signal", RUN_WARN_SIGNAL, "NAME", 0,
	 "A signal to all ranks then: USR1, TERM ...; for programs that save by it", 14},
	{"requeue", RUN_REQUEUE, NULL, 0,
	 "Queue the job again when it was stopped with its work saved, preempted, or lost a node: "
	 "by "
	 "scontrol requeue, or qsub of the same script",
	 14},
	{"max-requeues", RUN_MAX_REQUEUES, "N", 0, "At most so often in all (default 100)", 14},
	{NULL, 0, NULL, 0, "Output", 13},
	{"log-dir", RUN_LOG_DIR, "DIR", 0, "A file a rank: DIR/rank-0000.log", 13},
	{"label", RUN_LABEL, NULL, 0, "Begin each line of output with [RANK]", 13},
	{"report", RUN_REPORT, "FILE", 0, "Write how it ended as JSON (berth.run/1)", 13},
	{"dry-run", RUN_DRY_RUN, NULL, 0, "Show what would be started, and start nothing", 13},
	{"json", RUN_JSON, NULL, 0, "With --dry-run: as JSON", 13},
	{"quiet", 'q', NULL, 0, "Say nothing but errors", 13},
	{"verbose", 'v', NULL, 0, "Say more", 13},
	{NULL, 0, NULL, 0, NULL, 0},
};

void run_options_default(struct run_options *options)
{
	options->job.port_hold = true;
	options->launch.node_timeout_ms = 8000;
	options->max_requeues = 100;
	options->launch.start_timeout_ms = 60000;
	options->shared.alloc.node_rank = -1;
}

void run_options_free(struct run_options *options)
{
	free(options->env);
	options->env = NULL;
	options->env_count = 0;
}

static void refuse(const struct argp_state *state, const char *option, const char *text,
		   const char *expected)
{
	struct error err;

	error_set(&err, ERR_USAGE, "%s %.200s: expected %s", option, text, expected);
	arguments_refuse(state, &err);
}

static void read_time(const struct argp_state *state, const char *name, const char *text, int *out)
{
	struct error err = {0};
	int64_t ms;

	if (number_duration_ms(name, text, &ms, &err))
		arguments_refuse(state, &err);
	if (ms < 1000 || ms > 86400000)
		refuse(state, name, text, "a time from 1s to 1d");
	*out = (int)ms;
}

/* "USR1", "SIGUSR1", "10". */
static int read_signal(struct argp_state *state, const char *text)
{
	const char *name = strncmp(text, "SIG", 3) ? text : text + 3;
	int number;

	for (int i = 1; i < SIGRTMIN; i++)
		if (sigabbrev_np(i) && !strcmp(sigabbrev_np(i), name))
			return i;
	if (!number_int("--warn-signal", text, 1, SIGRTMAX, &number, NULL))
		return number;
	refuse(state, "--warn-signal", text, "a signal such as USR1 or TERM");
	return 0;
}

static error_t parse_end(int key, char *text, struct argp_state *state, struct run_options *options)
{
	int ms;

	switch (key) {
	case RUN_END_TIME:
		options->end_time = text;
		return 0;
	case RUN_WARN_BEFORE:
		read_time(state, "--warn-before", text, &ms);
		options->job.warn_before_ms = ms;
		return 0;
	case RUN_WARN_SIGNAL:
		options->job.warn_signal = read_signal(state, text);
		return 0;
	case RUN_REQUEUE:
		options->requeue = true;
		return 0;
	case RUN_MAX_REQUEUES:
		arguments_number(state, "--max-requeues", text, 100000, &options->max_requeues);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void add_env(struct argp_state *state, struct run_options *options, const char *text)
{
	const char *equals = strchr(text, '=');
	const char **more;

	if (!equals || equals == text)
		refuse(state, "--env", text, "NAME=VALUE");
	more = realloc(options->env, (options->env_count + 1) * sizeof *more);
	if (!more) {
		struct error err;

		error_memory(&err, "--env");
		arguments_refuse(state, &err);
	} else {
		options->env = more;
		options->env[options->env_count++] = text;
	}
}

error_t run_options_parse_place(int key, char *text, struct argp_state *state,
				struct run_options *options)
{
	static const char *const on_off[] = {"off", "on", NULL};
	struct error err = {0};

	switch (key) {
	case 'N':
		arguments_number(state, "--nodes", text, 100000, &options->nodes);
		return 0;
	case RUN_MASTER_ADDR:
		options->master_addr = text;
		return 0;
	case RUN_RDZV_ENDPOINT:
		options->rdzv_endpoint = text;
		return 0;
	case RUN_NNODES:
		arguments_number(state, "--nnodes", text, 100000, &options->shared.alloc.nnodes);
		return 0;
	case RUN_NODE_RANK:
		if (number_int("--node-rank", text, 0, 99999, &options->shared.alloc.node_rank,
			       &err))
			arguments_refuse(state, &err);
		options->has_node_rank = true;
		return 0;
	case RUN_PORT:
		arguments_number(state, "--port", text, 65535, &options->shared.plan.port);
		return 0;
	case RUN_PORT_HOLD:
		options->job.port_hold =
			arguments_choice(state, "--port-hold", text, on_off, "on or off") == 1;
		return 0;
	case RUN_LAUNCHER:
		options->launcher = text;
		return 0;
	case RUN_NODE_TIMEOUT:
		read_time(state, "--node-timeout", text, &options->launch.node_timeout_ms);
		return 0;
	case RUN_START_TIMEOUT:
		read_time(state, "--start-timeout", text, &options->launch.start_timeout_ms);
		options->has_start_timeout = true;
		return 0;
	case RUN_FAN_OUT:
		arguments_number(state, "--fan-out", text, 4096, &options->launch.fan_out);
		return 0;
	default:
		return parse_end(key, text, state, options);
	}
}

void run_options_by_hand(const struct argp_state *state, struct run_options *options)
{
	struct error err = {0};

	if (!options->shared.alloc.nnodes) {
		if (options->has_node_rank)
			error_set(&err, ERR_USAGE,
				  "--node-rank needs --nnodes and --rdzv-endpoint HOST:PORT");
		else if (options->rdzv_endpoint)
			error_set(&err, ERR_USAGE,
				  "--rdzv-endpoint %.120s: needs --nnodes and --node-rank, for "
				  "machines on which you start "
				  "berth yourself. To set MASTER_ADDR, use --master-addr ADDRESS",
				  options->rdzv_endpoint);
		if (err.code)
			arguments_refuse(state, &err);
		options->shared.plan.master_addr = options->master_addr;
		return;
	}
	if (options->master_addr) {
		error_set(&err, ERR_USAGE,
			  "--master-addr %.120s: conflicts with --nnodes. Use --rdzv-endpoint "
			  "HOST:PORT for the place where "
			  "the first machine waits; choose the network of the ranks with --iface "
			  "or --subnet",
			  options->master_addr);
		arguments_refuse(state, &err);
	}
	options->shared.alloc.rendezvous = options->rdzv_endpoint;
	/* A user starts the machines one after the other. */
	if (!options->has_start_timeout)
		options->launch.start_timeout_ms = BY_HAND_MS;
}

/* After a failure. */
static error_t parse_restarts(int key, char *text, struct argp_state *state,
			      struct run_options *options)
{
	struct error err = {0};

	switch (key) {
	case RUN_MAX_RESTARTS:
		if (number_int("--max-restarts", text, 0, 10000, &options->restarts.max_restarts,
			       &err))
			arguments_refuse(state, &err);
		return 0;
	case RUN_SPARES:
		if (number_int("--spares", text, 0, 100000, &options->restarts.spares, &err))
			arguments_refuse(state, &err);
		return 0;
	case RUN_HANG_TIMEOUT:
		read_time(state, "--hang-timeout", text, &options->job.hang_timeout_ms);
		return 0;
	case RUN_MIN_NODES:
		arguments_number(state, "--min-nodes", text, 100000, &options->restarts.min_nodes);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *text, struct argp_state *state)
{
	static const char *const pmix[] = {"auto", "on", "off", NULL};
	struct run_options *options = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &options->shared;
		return 0;
	case ARGP_KEY_END:
		run_options_by_hand(state, options);
		return 0;
	case RUN_PER_NODE:
		options->shared.plan.per_node = true;
		return 0;
	case RUN_ENV:
		add_env(state, options, text);
		return 0;
	case RUN_PMIX:
		options->job.pmix = (enum job_pmix)arguments_choice(state, "--pmix", text, pmix,
								    "auto, on or off");
		return 0;
	case RUN_LOG_DIR:
		options->job.log_dir = text;
		return 0;
	case RUN_LABEL:
		options->label = true;
		return 0;
	case RUN_REPORT:
		options->report = text;
		return 0;
	case RUN_DRY_RUN:
		options->dry_run = true;
		return 0;
	case RUN_JSON:
		options->json = true;
		return 0;
	case 'q':
		options->quiet = true;
		return 0;
	case 'v':
		options->verbose = true;
		return 0;
	default:
		return run_options_parse_place(key, text, state, options)
			       ? parse_restarts(key, text, state, options)
			       : 0;
	}
}

static const struct argp_child children[] = {{&options_argp, 0, NULL, 0}, {NULL, 0, NULL, 0}};

const struct argp run_options_argp = {.options = run_table, .parser = parse, .children = children};
