/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks MASTER_PORT. The first node's agent reserves it, that node's prober listens on it as rank
 * 0 would, and all nodes connect to it at the rendezvous address. */
#include <string.h>

#include "check/check_internal.h"

json_t *probe_port_question(const struct check *check, size_t node)
{
	const char *host = check->plan.network.address;
	json_t *address =
		json_sprintf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, check->plan.port);

	(void)node; /* the first node connects there, too */
	return json_pack("{s:s, s:[{s:i, s:[o]}]}", "ask", "port", "nodes", "node", 0, "addresses",
			 address);
}

static void judge(struct check *check)
{
	const char *taken = check_text(check_answer(check, 0, "begin"), "head_port_error");

	if (!check->planned)
		return;
	if (*taken)
		check_add(check, 0, "port", CHECK_FAULT,
			  "choose another --port, or omit it: berth then finds a free one",
			  "port %d: %s", check->plan.port, taken);
	for (size_t i = 0; !*taken && i < check->count; i++) {
		const json_t *rows = json_object_get(check_answer(check, i, "port?"), "rows");
		const char *outcome = json_string_value(json_array_get(json_array_get(rows, 0), 0));

		if (check->nodes[i].missing)
			continue;
		if (outcome && !strcmp(outcome, "ok"))
			check_add(check, i, "port", CHECK_OK, NULL,
				  "reaches the first node at %s port %d",
				  check->plan.network.address, check->plan.port);
		else
			check_add(check, i, "port", CHECK_FAULT,
				  "open TCP ports from 1024 up between the job's nodes, or choose "
				  "an open one with --port",
				  "the first node's port %d at %s: %s", check->plan.port,
				  check->plan.network.address,
				  outcome ? outcome : "no answer in time");
	}
}

const struct check_probe probe_port = {"port", .run = probe_reach_run, .judge = judge};
