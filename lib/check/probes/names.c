/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks host names. Ranks of berth use a numeric rendezvous address, so a name that does not
 * resolve stops only programs that use names themselves. A name that leads to the wrong machine
 * stops more. */
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "check/check_internal.h"

#define ALL_MS 3000 /* for all names together; later ones are skipped */
#define WRONG_MAX 4 /* reported per node: a wildcard in DNS answers for all names */

/* The numeric addresses of a name, or null if it has none. */
static json_t *resolve(const char *name)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	json_t *out = NULL;

	if (getaddrinfo(name, NULL, &hints, &list))
		return json_null();
	out = json_array();
	for (struct addrinfo *at = list; at && json_array_size(out) < 64; at = at->ai_next) {
		char text[NI_MAXHOST];

		if (!getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, NULL, 0,
				 NI_NUMERICHOST))
			json_array_append_new(out, json_string(text));
	}
	freeaddrinfo(list);
	return out;
}

static json_t *collect(const struct prober *prober)
{
	const json_t *names = json_object_get(prober->begin, "names");
	json_t *out = json_array();
	char own[256] = "";
	int64_t started_ms = clock_now_ms();

	/* Simulated nodes have no names: none were sent. */
	if (!json_array_size(names)) {
		json_decref(out);
		return json_object();
	}
	gethostname(own, sizeof own - 1);

	json_t *self = resolve(own);

	for (size_t i = 0; i < prober->node_count && clock_now_ms() - started_ms < ALL_MS; i++) {
		const char *name = json_string_value(json_array_get(names, i));

		json_array_append_new(out, name ? resolve(name) : json_null());
	}
	return json_pack("{s:o, s:o, s:o, s:I}", "own", json_text(own), "self", self, "nodes", out,
			 "ms", (json_int_t)(clock_now_ms() - started_ms));
}

/* ---- in the controller ---- */

static bool owns(const struct inventory *inventory, const char *numeric)
{
	char text[80];
	size_t length = strcspn(numeric, "%");

	for (size_t a = 0; a < inventory->address_count; a++) {
		inventory_address_format(&inventory->addresses[a], 0, text, sizeof text);
		if (strlen(text) == length && !strncmp(text, numeric, length))
			return true;
	}
	return false;
}

static bool is_loopback(const char *numeric)
{
	return !strncmp(numeric, "127.", 4) || !strcmp(numeric, "::1");
}

/* Does the address belong to another machine than the node that is meant? *owner is that node of
 * the job, or the count: none of them. Inventories lack the addresses of banned interfaces. */
static bool is_wrong(const struct check *check, size_t meant, const char *numeric, size_t *owner)
{
	if (is_loopback(numeric) || owns(&check->inventories[meant], numeric))
		return false;
	for (*owner = 0; *owner < check->count; ++*owner)
		if (owns(&check->inventories[*owner], numeric))
			return true;
	return check->inventories[meant].address_count &&
	       !env_get(check->request->launch->env, INVENTORY_BANNED);
}

struct findings {
	bool *unresolved, *loopback; /* [count] */
	size_t unresolved_count, loopback_count;
	size_t wrong_count;
};

static void judge_name(struct check *check, size_t node, size_t other, const json_t *list,
		       struct findings *found)
{
	const char *first = json_string_value(json_array_get(list, 0));
	size_t owner;

	if (!first) {
		found->unresolved[other] = true;
		found->unresolved_count++;
		return;
	}
	if (is_wrong(check, other, first, &owner)) {
		bool known = owner < check->count;

		if (found->wrong_count++ < WRONG_MAX)
			check_add(check, node, "names", CHECK_FAULT,
				  "correct /etc/hosts or DNS there",
				  "the name %s resolves to %s, which %s%s",
				  check->nodes[other].name, first,
				  known ? "is an address of " : "no node of this job has",
				  known ? check->nodes[owner].name : "");
	} else if (other != node && is_loopback(first)) {
		found->loopback[other] = true;
		found->loopback_count++;
	}
}

static void judge_names(struct check *check, size_t i, const json_t *answer, struct findings *found)
{
	const json_t *nodes = json_object_get(answer, "nodes");
	const char *self = json_string_value(json_array_get(json_object_get(answer, "self"), 0));
	const char *own = check_text(answer, "own");
	static const char advice[] = "not needed for berth, which uses numeric addresses; programs "
				     "that use names themselves need it in /etc/hosts or DNS";
	char *names;

	for (size_t n = 0; n < json_array_size(nodes); n++)
		judge_name(check, i, n, json_array_get(nodes, n), found);
	if (found->wrong_count)
		return;
	if (json_array_size(nodes) < check->count) {
		check_add(check, i, "names", CHECK_NOTE,
			  "configure a name server that answers; berth uses numeric addresses and "
			  "needs none",
			  "name lookups are slow here: %zu of %zu done within %d s",
			  json_array_size(nodes), check->count, ALL_MS / 1000);
		return;
	}
	if (found->unresolved_count || found->loopback_count) {
		bool unknown = found->unresolved_count > 0;
		bool one = (unknown ? found->unresolved_count : found->loopback_count) == 1;

		names = alloc_node_list(check->request->launch->alloc,
					unknown ? found->unresolved : found->loopback);
		check_add(check, i, "names", CHECK_NOTE, advice, "%s %s", names ? names : "some",
			  unknown ? one ? "does not resolve here" : "do not resolve here"
			  : one	  ? "resolves to loopback here"
				  : "resolve to loopback here");
		free(names);
	} else if (!self || (check->count > 1 && is_loopback(self))) {
		check_add(check, i, "names", CHECK_NOTE, advice,
			  "its own name, %s, %s%s: a program that looks itself up by name gives "
			  "the other nodes an unusable address",
			  own, self ? "is " : "does not resolve", self ? self : "");
	} else {
		check_add(check, i, "names", CHECK_OK, NULL, "%s",
			  check->count > 1 ? "all nodes' names resolve" : "its own name resolves");
	}
}

static void judge_node(struct check *check, size_t i, const json_t *answer)
{
	struct findings found = {calloc(check->count, 1), calloc(check->count, 1)};

	if (check->simulated)
		check_add(check, i, "names", CHECK_SKIPPED, NULL,
			  "simulated nodes have no names of their own");
	else if (!check->nodes[i].missing && !answer)
		check_add(check, i, "names", CHECK_NOTE,
			  "configure a name server that answers; berth uses numeric "
			  "addresses and needs none",
			  "name lookups took too long here");
	else if (!check->nodes[i].missing && found.unresolved && found.loopback)
		judge_names(check, i, answer, &found);
	free(found.unresolved);
	free(found.loopback);
}

const struct check_probe probe_names = {"names", .collect = collect, .judge_node = judge_node};
