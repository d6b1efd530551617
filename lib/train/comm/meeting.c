/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/meeting.h"

#include <stdlib.h>
#include <string.h>

#include "rendezvous/exchange.h"

#define KEY_FACTS "berth.train.facts"
#define KEY_DECISION "berth.train.decision"
/* From the barrier on, all ranks are there: only a machine that is slow takes long. */
#define ANSWER_MS 60000
/* A rank that cannot take part waits only so long before it says so itself. */
#define FAILED_MS 2000

struct decision {
	struct error err;
	int32_t first;
};

static const char *reason(const struct meeting_facts *facts)
{
	return *facts->instead ? facts->instead : "there it was chosen by --device and --comm auto";
}

/* The ranks are one and other; one has what is better, so that other has the reason. */
static int differ(const struct meeting_facts *facts, int one, int other, const char *what,
		  const char *of_one, const char *of_other, const char *fix, struct error *err)
{
	const struct meeting_facts *less = &facts[*facts[other].instead ? other : one];

	return error_set(err, ERR_UNAVAILABLE,
			 "rank %d on %s would %s %s, but rank %d on %s %s (%s). All ranks need the "
			 "same: %s",
			 one, facts[one].host, what, of_one, other, facts[other].host, of_other,
			 reason(less), fix);
}

int meeting_decide(const struct meeting_facts *facts, int size, int *first, struct error *err)
{
	for (*first = 0; *first < size; ++*first)
		if (facts[*first].err.code)
			return error_set(err, facts[*first].err.code, "%s", facts[*first].err.text);
	*first = 0;
	for (int rank = 1; rank < size; rank++) {
		if (strcmp(facts[rank].device, facts[0].device))
			return differ(facts, 0, rank, "train on", facts[0].device,
				      facts[rank].device,
				      "repair that node, leave it out, or use --device cpu", err);
		if (strcmp(facts[rank].comm, facts[0].comm))
			return differ(facts, 0, rank, "communicate over", facts[0].comm,
				      facts[rank].comm,
				      "install the same modules, or choose one with --comm", err);
	}
	return 0;
}

/* On rank 0. */
static void collect(struct ranks *ranks, const struct meeting_facts *own, struct decision *out)
{
	int size = ranks_place(ranks)->size, rc = 0, first = 0;
	struct meeting_facts *facts = calloc((size_t)size, sizeof *facts);

	if (!facts)
		rc = error_memory(&out->err, "the ranks' devices");
	else
		facts[0] = *own;
	for (int rank = 1; !rc && rank < size; rank++)
		rc = ranks_get_exact(ranks, rank, KEY_FACTS, ANSWER_MS, &facts[rank], sizeof *facts,
				     &out->err);
	if (!rc)
		meeting_decide(facts, size, &first, &out->err);
	out->first = first;
	free(facts);
}

int meeting_hold(struct ranks *ranks, const struct meeting_facts *own, int timeout_ms, int *first,
		 struct error *err)
{
	struct decision decision = {0};
	bool decides = !ranks_place(ranks)->rank;
	bool failed = own->err.code;
	int rc = ranks_barrier(ranks, failed && timeout_ms > FAILED_MS ? FAILED_MS : timeout_ms,
			       err);

	*first = ranks_place(ranks)->rank;
	if (rc && failed)
		return error_set(err, own->err.code, "%s", own->err.text);
	if (rc == -ERR_NETWORK) {
		struct error why = *err;

		return error_set(err, ERR_NETWORK,
				 "%.900s. Look for earlier errors in their output, or raise "
				 "--comm-timeout",
				 why.text);
	}
	if (rc)
		return rc;
	if (decides)
		collect(ranks, own, &decision);
	rc = decides ? ranks_put(ranks, KEY_DECISION, &decision, sizeof decision, err)
		     : ranks_put(ranks, KEY_FACTS, own, sizeof *own, err);
	if (!rc && !decides)
		rc = ranks_get_exact(ranks, 0, KEY_DECISION, 2 * ANSWER_MS, &decision,
				     sizeof decision, err);
	if (rc)
		return rc;
	*first = decision.first;
	decision.err.text[sizeof decision.err.text - 1] = 0;
	return decision.err.code ? error_set(err, decision.err.code, "%s", decision.err.text) : 0;
}
