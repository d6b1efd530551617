/* SPDX-License-Identifier: BSD-3-Clause */
/* Source "hand": a person, or something unknown to berth, starts berth run on each machine with
 * --nnodes, --node-rank and --rdzv-endpoint. Nothing is known about the other machines; they are
 * called node0, node1... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/alloc.h"
#include "base/bytes.h"
#include "base/number.h"
#include "hostlist/hostlist.h"

static int hand_present(const struct env *env, const struct alloc_request *request)
{
	(void)env;
	return request->nnodes > 0;
}

int alloc_parse_rendezvous(const char *name, const char *text, char *host, size_t size, int *port,
			   struct error *err)
{
	const char *colon = strrchr(text, ':'), *begin = text;
	size_t length = colon ? (size_t)(colon - text) : 0;
	int number;

	if (length > 2 && *text == '[' && colon[-1] == ']') {
		begin++;
		length -= 2;
	} else if (memchr(text, ':', length)) {
		length = 0; /* an IPv6 address without brackets: which part is the port? */
	}
	if (!length || length >= 256 || begin[0] == '-' || begin[strcspn(begin, " ,/@\t\n")])
		return error_set(err, ERR_USAGE,
				 "%s %.120s: expected HOST:PORT, the first machine's name or "
				 "address and a free port there (IPv6: [ADDRESS]:PORT)",
				 name, text);
	if (number_int(name, colon + 1, 1, 65535, &number, err))
		return error_set(err, ERR_USAGE,
				 "%s %.120s: expected a port from 1 to 65535 after the colon", name,
				 text);
	if (host && length >= size)
		return error_set(err, ERR_USAGE, "%s %.120s: the host name is too long", name,
				 text);
	if (host)
		snprintf(host, size, "%.*s", (int)length, begin);
	*port = number;
	return 0;
}

static int check_hand(const struct alloc_request *request, char host[256], int *port,
		      struct error *err)
{
	if (request->hosts || request->hostfile)
		return error_set(err, ERR_USAGE,
				 "--nnodes is for machines on which you start berth run by hand; "
				 "with --hosts or --hostfile berth starts itself on the other "
				 "machines. Give only one of them.");
	if (request->node_rank < 0 || !request->rendezvous)
		return error_set(
			err, ERR_USAGE,
			"--nnodes %d also needs --node-rank and --rdzv-endpoint HOST:PORT. Run the "
			"same command on each machine, each with its own --node-rank.",
			request->nnodes);
	if (request->node_rank >= request->nnodes)
		return error_set(err, ERR_USAGE,
				 "--node-rank %d: with --nnodes %d, expected 0 to %d",
				 request->node_rank, request->nnodes, request->nnodes - 1);
	if (request->nnodes > HOSTLIST_MAX_HOSTS)
		return error_set(err, ERR_USAGE, "--nnodes %d: expected at most %d",
				 request->nnodes, HOSTLIST_MAX_HOSTS);
	return alloc_parse_rendezvous("--rdzv-endpoint", request->rendezvous, host, 256, port, err);
}

/* The job's name contains the endpoint, which only one job can use at a time. All of a user's jobs
 * share the secret file, but a proof is valid for one name only. */
static int fill(const struct alloc_request *request, const char *host, int port, struct alloc *made)
{
	made->rendezvous = strdup(request->rendezvous);
	made->this_node = request->node_rank;
	made->job_id = text_format("hand-%s-%d-%d", host, port, request->nnodes);
	made->why = text_format("--nnodes is %d; this machine has --node-rank %d", request->nnodes,
				request->node_rank);
	made->nodes = calloc((size_t)request->nnodes, sizeof *made->nodes);
	if (!made->rendezvous || !made->job_id || !made->why || !made->nodes)
		return -1;
	for (; made->node_count < (size_t)request->nnodes; made->node_count++) {
		struct alloc_node *node = &made->nodes[made->node_count];

		node->gpus = -1;
		if (!(node->name = text_format("node%zu", made->node_count)))
			return -1;
	}
	return 0;
}

static int read_hand(const struct env *env, const struct alloc_request *request, struct alloc *out,
		     struct error *err)
{
	char host[256];
	int port, rc = check_hand(request, host, &port, err);

	(void)env;
	if (!rc && fill(request, host, port, out))
		rc = error_memory(err, "the allocation");
	return rc;
}

const struct alloc_source alloc_source_hand = {ALLOC_FROM_HAND, hand_present, read_hand};
