/* SPDX-License-Identifier: BSD-3-Clause */
/* berth check: are all nodes, and the network between them, fit for a job? */
#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "base/json.h"
#include "check/check.h"
#include "check/check_text.h"
#include "run/run.h"
#include "show.h"
#include "verb.h"

struct arguments {
	struct run_options run; /* options shared with a job */
	const char *checkpoint;
	bool json, verbose, prober;
};

enum key {
	KEY_HOSTS = 0x400,
	KEY_HOSTFILE,
	KEY_IFACE,
	KEY_SUBNET,
	KEY_CKPT,
	KEY_JSON,
	KEY_PROBER,
};

static const struct argp_option table[] = {
	{"nodes", 'N', "N", 0, "Nodes to check (default: all of the allocation)", 1},
	{"hosts", KEY_HOSTS, "LIST", 0, "These hosts, \"n[1-4],gpu7\"", 1},
	{"hostfile", KEY_HOSTFILE, "FILE", 0, "The hosts of a host file", 1},
	{"iface", KEY_IFACE, "NAME", 0, "The network of this interface of the head", 1},
	{"subnet", KEY_SUBNET, "CIDR", 0, "The network in this range", 1},
	{"master-addr", RUN_MASTER_ADDR, "ADDRESS", 0,
	 "Set MASTER_ADDR to this numeric address of the first node", 1},
	{"nnodes", RUN_NNODES, "N", 0,
	 "By hand, as for berth run: this line is started on N machines", 1},
	{"node-rank", RUN_NODE_RANK, "R", 0, "By hand: which machine this is, from 0", 1},
	{"rdzv-endpoint", RUN_RDZV_ENDPOINT, "HOST:PORT", 0,
	 "By hand: wait for the other machines at this address of the first one", 1},
	{"port", RUN_PORT, "PORT", 0, "MASTER_PORT (default: a free one)", 1},
	{"launcher", RUN_LAUNCHER, "NAME", 0, "How agents are started, as berth run's", 1},
	{"start-timeout", RUN_START_TIMEOUT, "TIME", 0,
	 "All agents must be there within this time (default 20s)", 1},
	{"ckpt", KEY_CKPT, "DIR", 0, "The checkpoint folder, which all nodes must see", 2},
	{"json", KEY_JSON, NULL, 0, "Print berth.check/1 instead of a table", 3},
	{"verbose", 'v', NULL, 0, "Say more on standard error", 3},
	{"prober", KEY_PROBER, NULL, OPTION_HIDDEN, NULL, 3},
	{NULL, 0, NULL, 0, NULL, 0},
};

static error_t parse(int key, char *text, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	struct plan_request *plan_request = &arguments->run.shared.plan;
	struct error err = {0};

	switch (key) {
	case KEY_HOSTS:
		arguments->run.shared.alloc.hosts = text;
		return 0;
	case KEY_HOSTFILE:
		arguments->run.shared.alloc.hostfile = text;
		return 0;
	case KEY_IFACE:
		plan_request->iface = text;
		return 0;
	case KEY_SUBNET:
		plan_request->subnet = text;
		return 0;
	case ARGP_KEY_END:
		run_options_by_hand(state, &arguments->run);
		return 0;
	case KEY_CKPT:
		arguments->checkpoint = text;
		return 0;
	case KEY_JSON:
		arguments->json = true;
		return 0;
	case 'v':
		arguments->verbose = true;
		return 0;
	case KEY_PROBER:
		arguments->prober = true;
		return 0;
	case ARGP_KEY_ARG:
		error_set(&err, ERR_USAGE, "unexpected argument '%s'", text);
		arguments_refuse(state, &err);
		return 0;
	default:
		return run_options_parse_place(key, text, state, &arguments->run);
	}
}

static void on_note(void *context, enum log_level level, const char *text)
{
	const struct arguments *arguments = context;

	if (level <= LOG_NOTE || arguments->verbose)
		fprintf(stderr, "berth: %s%s\n", level == LOG_WARNING ? "warning: " : "", text);
}

/* Make path absolute from the current directory, which need not be the ranks'. */
static int absolute(const char *path, const char *cwd, char **out, struct error *err)
{
	*out = NULL;
	if (!path)
		return 0;
	if (!*path)
		return error_set(err, ERR_USAGE, "--ckpt is empty; is a variable unset?");
	if (*path == '/')
		*out = strdup(path);
	else if (asprintf(out, "%s/%s", cwd ? cwd : ".", path) < 0)
		*out = NULL;
	return *out ? 0 : error_memory(err, "--ckpt");
}

static int check(const struct arguments *arguments, const struct run_setup *setup, json_t **out,
		 struct error *err)
{
	const char *const prober[] = {setup->berth_path, "check", "--prober", NULL};
	char *checkpoint = NULL;
	struct check_request request = {
		.launch = &setup->launch,
		.prober = prober,
		.version = BERTH_VERSION,
		.plan_request = arguments->run.shared.plan,
		.note = on_note,
		.context = (void *)arguments,
	};
	int rc = absolute(arguments->checkpoint, setup->cwd, &checkpoint, err);

	request.checkpoint = checkpoint;
	if (!rc)
		rc = check_run(&request, out, err);
	free(checkpoint);
	return rc;
}

static int show(const struct arguments *arguments, const struct run_setup *setup,
		const json_t *result, struct error *err)
{
	size_t faults = check_faults(result), nodes = setup->alloc.node_count;

	if (arguments->json) {
		if (json_print(result, stdout, err))
			return -err->code;
	} else {
		check_print(result, setup->env, stdout);
	}
	if (fflush(stdout) || ferror(stdout))
		return error_set(err, ERR_IO, "cannot write to standard output");
	if (faults)
		return error_set(err, ERR_NETWORK, "%zu fault%s on %zu node%s", faults,
				 plural(faults), nodes, plural(nodes));
	fprintf(stderr, "berth: %zu node%s checked, no fault\n", nodes, plural(nodes));
	return 0;
}

int verb_check(int argc, char **argv)
{
	static const struct argp argp = {
		.options = table,
		.parser = parse,
		.doc = "Look at every node of the job and the network between them, in seconds, "
		       "before a job does: who reaches whom, versions, limits, GPUs, folders, and "
		       "an all-reduce with checked sums over the NIC that a job would use.\v"
		       "Ends with 76 when something is amiss; the table names the node, what was "
		       "seen and how to fix it.",
	};
	static const char *const itself[] = {"/proc/self/exe", NULL};
	struct arguments arguments = {0};
	struct run_setup setup = {0};
	struct error err = {0};
	JSON_AUTO result = NULL;
	int rc;

	run_options_default(&arguments.run);
	arguments.run.launch.start_timeout_ms = 20000;
	arguments_parse(&argp, argc, argv, 0, &arguments);
	if (arguments.prober)
		check_prober(env_capture(), BERTH_VERSION);
	rc = run_prepare(&arguments.run, itself, &setup, &err);
	if (!rc && run_is_agent(&setup)) {
		int code = 0;

		rc = run_as_agent(&setup, &code, &err);
		run_setup_free(&setup);
		return rc ? verb_fail(&err) : code;
	}
	if (!rc)
		rc = run_check_rendezvous(&setup, &err);
	if (!rc)
		rc = check(&arguments, &setup, &result, &err);
	if (!rc)
		rc = show(&arguments, &setup, result, &err);
	run_setup_free(&setup);
	return rc ? verb_fail(&err) : 0;
}
