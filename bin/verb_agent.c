/* SPDX-License-Identifier: BSD-3-Clause */
/* berth agent: one node's part of a job; started by engines. */
#include <argp.h>
#include <stdlib.h>

#include "agent/agent.h"
#include "arguments.h"
#include "base/env.h"
#include "base/log.h"
#include "launch/engine.h"
#include "verb.h"

int verb_agent(int argc, char **argv)
{
	static const struct argp argp = {
		.doc = "Be the agent of one node: start its ranks and stay beside them. Started by "
		       "berth run through the cluster's engine, not by hand.\v"
		       "Takes its place from the environment: " ENGINE_ENV_HEAD ", " ENGINE_ENV_JOB
		       ", " ENGINE_ENV_NODE ", " ENGINE_ENV_NAME " (or " ENGINE_ENV_NODES
		       " and " ENGINE_ENV_SELF "), " ENGINE_ENV_SECRET ", " ENGINE_ENV_TIMEOUT
		       ".",
	};
	struct agent_params params = {0};
	struct error err = {0};
	struct env *env;
	int rc;

	arguments_parse(&argp, argc, argv, 0, NULL);
	env = env_capture();
	rc = env ? agent_params_read(env, &params, &err) : error_memory(&err, "the environment");
	if (!rc) {
		/* What is started from here on shall not find the secret in its environment. */
		unsetenv(ENGINE_ENV_SECRET);
		rc = agent_run(&params, &err);
	}
	if (rc)
		fprintf(stderr, ENGINE_NO_AGENT "%s: %s\n", params.name ? params.name : "this node",
			err.text);
	env_free(env);
	return -rc;
}
