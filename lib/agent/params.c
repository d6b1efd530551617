/* SPDX-License-Identifier: BSD-3-Clause */
/* Who this agent is and whom it connects to, from the environment that the launcher made. */
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/agent.h"
#include "alloc/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/number.h"
#include "hostlist/hostlist.h"
#include "launch/launcher.h"
#include "overlay/secret.h"

/* Find this host among hosts, by name or address. Compare full names before short ones: n1.a and
 * n1.b may both be nodes. */
static int find_this_host(const struct hosts *hosts, struct error *err)
{
	char self[256] = "";
	int found = -1;

	gethostname(self, sizeof self - 1);
	for (size_t i = 0; i < hosts->count; i++)
		if (!strcmp(hosts->names[i], self))
			return (int)i;
	for (size_t i = 0; i < hosts->count; i++) {
		if (!launcher_is_this_host(hosts->names[i]))
			continue;
		if (found >= 0)
			return error_set(err, ERR_DATA,
					 "host %s matches two of the job's nodes, %s and %s", self,
					 hosts->names[found], hosts->names[i]);
		found = (int)i;
	}
	return found >= 0 ? found
			  : error_set(err, ERR_DATA, "host %s is not one of the job's nodes", self);
}

static int not_started_by_berth(const char *missing, struct error *err)
{
	return error_set(err, ERR_USAGE,
			 "%s is not set: only berth run starts agents; see man berth-agent",
			 missing);
}

/* Find this node in the job's list of nodes, by the name in the variable self. */
static int find_in_list(const struct env *env, const char *list, const char *self,
			struct agent_params *params, int *node, struct error *err)
{
	struct hosts hosts = {0};
	int rc = hostlist_expand(list, &hosts, err);

	if (!rc && !strcmp(self, LAUNCHER_SELF_FROM_HOST)) {
		*node = find_this_host(&hosts, err);
		rc = *node < 0 ? *node : 0;
		/* Never freed: a process has only one. */
		params->name = rc ? NULL : strdup(hosts.names[*node]);
		if (!rc && !params->name)
			rc = error_memory(err, "the node's name");
	} else {
		params->name = env_get(env, self);
		*node = -1;
		for (size_t i = 0; !rc && params->name && *node < 0 && i < hosts.count; i++)
			if (!strcmp(hosts.names[i], params->name))
				*node = (int)i;
		if (!rc && *node < 0)
			rc = error_set(
				err, ERR_DATA,
				"%s is '%.80s', which is not one of the job's nodes: '%.200s'",
				self, params->name ? params->name : "", list);
	}
	hosts_free(&hosts);
	return rc;
}

/* Read LAUNCHER_ENV_NODE and NAME, or find this node in the list that all agents were given. */
static int read_node_identity(const struct env *env, struct agent_params *params, struct error *err)
{
	const char *list = env_get(env, LAUNCHER_ENV_NODES),
		   *self = env_get(env, LAUNCHER_ENV_SELF);
	const char *index = env_get(env, LAUNCHER_ENV_NODE);
	int node = 0, rc;

	if (list && self)
		rc = find_in_list(env, list, self, params, &node, err);
	else if (index)
		/* The limit is WELCOME's, for the number of nodes. */
		rc = number_int(LAUNCHER_ENV_NODE, index, 0, 1 << 20, &node, err);
	else
		rc = not_started_by_berth(LAUNCHER_ENV_NODE, err);
	if (!list || !self)
		params->name = env_get(env, LAUNCHER_ENV_NAME);
	params->node_index = rc ? 0 : (size_t)node;
	return rc;
}

/* Read BERTH_AGENT_SECRET, or follow BERTH_AGENT_SECRET_FROM. */
static int read_secret(const struct env *env, struct agent_params *params, struct error *err)
{
	static const char cookie[] = "cookie:", file[] = "file:";
	const char *secret = env_get(env, LAUNCHER_ENV_SECRET);
	const char *secret_source = env_get(env, LAUNCHER_ENV_SECRET_SOURCE);

	if (secret)
		return secret_parse(secret, &params->secret, err);
	if (!secret_source)
		return not_started_by_berth(LAUNCHER_ENV_SECRET, err);
	if (!strncmp(secret_source, file, sizeof file - 1))
		return secret_file_load(secret_source + sizeof file - 1, &params->secret, err);
	if (strncmp(secret_source, cookie, sizeof cookie - 1))
		return error_set(err, ERR_DATA, "%s is '%.40s', expected cookie:NONCE or file:PATH",
				 LAUNCHER_ENV_SECRET_SOURCE, secret_source);
	return secret_derive(env_get(env, LAUNCHER_COOKIE), params->job,
			     secret_source + sizeof cookie - 1, &params->secret, err);
}

int agent_params_read(const struct env *env, struct agent_params *out, struct error *err)
{
	static const char *const needed[] = {LAUNCHER_ENV_CONTROLLER, LAUNCHER_ENV_JOB};
	struct agent_params params = {.fd = -1, .node_timeout_ms = NODE_TIMEOUT_MS, .env = env};
	int rc;

	for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
		if (!env_get(env, needed[i]))
			return not_started_by_berth(needed[i], err);
	params.controller_addresses = env_get(env, LAUNCHER_ENV_CONTROLLER);
	params.job = env_get(env, LAUNCHER_ENV_JOB);
	rc = read_node_identity(env, &params, err);
	if (!rc && env_get(env, LAUNCHER_ENV_NODE_TIMEOUT))
		rc = number_int(LAUNCHER_ENV_NODE_TIMEOUT, env_get(env, LAUNCHER_ENV_NODE_TIMEOUT),
				100, 86400000, &params.node_timeout_ms, err);
	if (!rc)
		rc = read_secret(env, &params, err);
	if (rc)
		return error_prefix(err, "berth agent");
	*out = params;
	return 0;
}

int agent_resolve(const char *rendezvous, int connect_timeout_ms, char *out, size_t size,
		  struct error *err)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	int64_t until = clock_now_ms() + connect_timeout_ms;
	char host[256], service[8];
	struct addrinfo *list = NULL;
	int port, failed,
		rc = alloc_parse_rendezvous("the rendezvous address", rendezvous, host, sizeof host,
					    &port, err);

	if (rc)
		return rc;
	snprintf(service, sizeof service, "%d", port);
	while ((failed = getaddrinfo(host, service, &hints, &list)) && clock_now_ms() < until)
		usleep(500000);
	if (failed)
		return error_set(err, ERR_NETWORK,
				 "cannot resolve the first node's name %s on this node: %s. Give "
				 "its IP address instead.",
				 host, gai_strerror(failed));
	out[0] = '\0';
	for (const struct addrinfo *at = list; at; at = at->ai_next) {
		char address[INET6_ADDRSTRLEN];

		if (!getnameinfo(at->ai_addr, at->ai_addrlen, address, sizeof address, NULL, 0,
				 NI_NUMERICHOST) &&
		    strlen(out) + sizeof address + 12 < size)
			text_append(out, size, at->ai_family == AF_INET6 ? "%s[%s]:%d" : "%s%s:%d",
				    *out ? "," : "", address, port);
	}
	freeaddrinfo(list);
	return 0;
}
