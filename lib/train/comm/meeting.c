/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/meeting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/exchange.h"

#define KEY_FACTS "berth.train.facts"
#define KEY_DECISION "berth.train.decision"
/* From the barrier on, all ranks are there: only a machine that is slow takes long. */
#define ANSWER_MS 60000
/* A rank that cannot take part waits only so long before it says so itself. */
#define FAILED_MS 2000
#define ROWS_MAX 8 /* of ranks that share GPUs, to limit the length of the message */

void meeting_describe(const struct comm_choice *choice, const struct comm_request *request,
		      const struct meeting_rules *rules, struct meeting_facts *out)
{
	char host[sizeof out->host] = "";

	if (gethostname(host, sizeof host - 1))
		strcpy(host, "?");
	memcpy(out->host, host, sizeof host);
	if (out->err.code)
		return;

	for (size_t i = 0; i < rules->setting_count; i++)
		out->settings[i] = rules->settings[i].value;

	const struct device_ops *ops = request->queue->device->ops;

	snprintf(out->device, sizeof out->device, "%s", ops->name);
	snprintf(out->comm, sizeof out->comm, "%s", choice->ops->name);
	if (!*out->instead)
		snprintf(out->instead, sizeof out->instead, "%s", choice->instead.text);
	if (choice->ops->on_stream && ops->uuid)
		ops->uuid(request->queue->device, out->gpu);
	if (choice->ops->prepare)
		choice->ops->prepare(request, out->library, &out->err);
}

/* ---- rank 0's decision ---- */

static const char *reason(const struct meeting_facts *facts)
{
	return *facts->instead ? facts->instead : "there it was chosen by --device and --comm auto";
}

/* Rank 0 and another have not the same; one has what is better, so that the other has the reason.
 */
static void differ(const struct meeting_facts *facts, int other, const char *what, const char *of_0,
		   const char *of_other, const char *fix, struct error *err)
{
	const struct meeting_facts *less = &facts[*facts[other].instead ? other : 0];

	error_set(err, ERR_UNAVAILABLE,
		  "rank 0 on %s would %s %s, but rank %d on %s %s (%s). All ranks need the same: "
		  "%s",
		  facts[0].host, what, of_0, other, facts[other].host, of_other, reason(less), fix);
}

static void compare(const struct meeting_facts *facts, int other, struct error *err)
{
	const struct meeting_facts *of_0 = &facts[0], *its = &facts[other];

	if (strcmp(its->device, of_0->device))
		differ(facts, other, "train on", of_0->device, its->device,
		       "repair that node, leave it out, or use --device cpu", err);
	else if (strcmp(its->comm, of_0->comm))
		differ(facts, other, "communicate over", of_0->comm, its->comm,
		       "install the same modules, or choose one with --comm", err);
	else if (strcmp(its->library, of_0->library))
		error_set(err, ERR_UNAVAILABLE,
			  "rank 0 on %s has %s, but rank %d on %s has %s: they are incompatible. "
			  "Install the same version on all nodes, or set LD_LIBRARY_PATH so that "
			  "all load it",
			  of_0->host, of_0->library, other, its->host, its->library);
}

static void compare_settings(const struct meeting_facts *facts, int other,
			     const struct meeting_rules *rules, struct error *err)
{
	for (size_t i = 0; !err->code && i < rules->setting_count; i++) {
		double of_0 = facts[0].settings[i], its = facts[other].settings[i];
		const struct meeting_setting *setting = &rules->settings[i];

		if (its != of_0 && setting->mark)
			error_set(
				err, ERR_DATA,
				"the ranks differ in %s: rank %d does not match rank 0. Start all "
				"ranks with the same command line and files",
				setting->name, other);
		else if (its != of_0)
			error_set(err, ERR_DATA,
				  "the ranks differ in %s: rank 0 has %.15g, rank %d has %.15g. "
				  "Start all ranks with the same command line and files",
				  setting->name, of_0, other, its);
	}
}

static int by_gpu(const void *left, const void *right, void *context)
{
	const struct meeting_facts *facts = context;
	int a = *(const int *)left, b = *(const int *)right;
	int order = strcmp(facts[a].gpu, facts[b].gpu);

	return order ? order : a - b;
}

/* The rows of ranks that share a GPU; returns how many GPUs are shared. */
static int shared_rows(const struct meeting_facts *facts, const int *order, int count, char *rows,
		       size_t size)
{
	size_t used = 0;
	int gpus = 0, written = 0, left = 0;

	rows[0] = 0;
	for (int i = 0; i < count; i++) {
		const char *gpu = facts[order[i]].gpu;
		bool before = i > 0 && !strcmp(gpu, facts[order[i - 1]].gpu);
		bool after = i + 1 < count && !strcmp(gpu, facts[order[i + 1]].gpu);

		if (!*gpu || (!before && !after))
			continue;
		gpus += !before;
		if (written == ROWS_MAX || used >= size) {
			left++;
			continue;
		}
		used += (size_t)snprintf(rows + used, size - used, "%srank %d  %s  %s",
					 written++ ? "; " : "", order[i], facts[order[i]].host,
					 gpu);
	}
	if (left && used < size)
		snprintf(rows + used, size - used, "; and %d more", left);
	return gpus;
}

/* If two ranks share a GPU, NCCL hangs or fails without a reason. */
static void check_gpus(const struct meeting_facts *facts, int size, bool allow_shared,
		       struct meeting *out)
{
	int *order = calloc((size_t)size, sizeof *order);
	char rows[720];

	if (!order) {
		error_memory(&out->err, "the ranks' GPUs");
		return;
	}
	for (int i = 0; i < size; i++)
		order[i] = i;
	qsort_r(order, (size_t)size, sizeof *order, by_gpu, (void *)(uintptr_t)facts);

	int gpus = shared_rows(facts, order, size, rows, sizeof rows);

	free(order);
	out->shared_gpu = gpus > 0;
	if (gpus && !allow_shared)
		error_set(&out->err, ERR_UNAVAILABLE,
			  "%s used by more than one rank, so NCCL would hang (%s). Start one rank "
			  "per GPU. Check that each rank of a node has its own LOCAL_RANK and that "
			  "CUDA_VISIBLE_DEVICES lists all GPUs of the node. Or use "
			  "--allow-shared-gpu or --comm mpi",
			  gpus == 1 ? "1 GPU is" : "several GPUs are", rows);
}

void meeting_decide(const struct meeting_facts *facts, int size, const struct meeting_rules *rules,
		    struct meeting *out)
{
	out->one_node = true;
	for (int rank = 0; rank < size; rank++) {
		memcpy(out->hosts[rank], facts[rank].host, sizeof *out->hosts);
		out->one_node = out->one_node && !strcmp(facts[rank].host, facts[0].host);
	}
	for (int rank = 0; rank < size; rank++)
		if (facts[rank].err.code) {
			out->err = facts[rank].err;
			out->first = rank;
			return;
		}
	for (int rank = 1; !out->err.code && rank < size; rank++)
		compare(facts, rank, &out->err);
	for (int rank = 1; !out->err.code && rank < size; rank++)
		compare_settings(facts, rank, rules, &out->err);
	if (!out->err.code)
		check_gpus(facts, size, rules->allow_shared_gpu, out);
}

/* On rank 0. */
static void collect(struct ranks *ranks, const struct meeting_facts *own,
		    const struct meeting_rules *rules, struct meeting *out)
{
	int size = ranks_place(ranks)->size, rc = 0;
	struct meeting_facts *facts = calloc((size_t)size, sizeof *facts);

	if (!facts)
		rc = error_memory(&out->err, "the ranks' devices");
	else
		facts[0] = *own;
	for (int rank = 1; !rc && rank < size; rank++)
		rc = ranks_get_exact(ranks, rank, KEY_FACTS, ANSWER_MS, &facts[rank], sizeof *facts,
				     &out->err);
	if (!rc)
		meeting_decide(facts, size, rules, out);
	free(facts);
}

/* ---- the meeting ---- */

static int gather(struct ranks *ranks, const struct meeting_facts *own, int timeout_ms,
		  struct error *err)
{
	int failed = own->err.code;
	int rc = ranks_barrier(ranks, failed && timeout_ms > FAILED_MS ? FAILED_MS : timeout_ms,
			       err);
	struct error why = *err;

	if (rc && failed)
		return error_set(err, failed, "%s", own->err.text);
	if (rc == -ERR_NETWORK)
		error_set(err, ERR_NETWORK,
			  "%.900s. Look for earlier errors in their output, or raise "
			  "--comm-timeout",
			  why.text);
	return rc;
}

int meeting_hold(struct ranks *ranks, const struct meeting_facts *own,
		 const struct meeting_rules *rules, int timeout_ms, struct meeting **out,
		 struct error *err)
{
	const struct ranks_place *place = ranks_place(ranks);
	size_t bytes = sizeof **out + (size_t)place->size * sizeof *(*out)->hosts;
	struct meeting *meeting = calloc(1, bytes);
	int rc = meeting ? gather(ranks, own, timeout_ms, err) : error_memory(err, "the ranks");

	*out = NULL;
	if (!rc && !place->rank) {
		collect(ranks, own, rules, meeting);
		rc = ranks_put(ranks, KEY_DECISION, meeting, bytes, err);
	} else if (!rc) {
		rc = ranks_put(ranks, KEY_FACTS, own, sizeof *own, err);
		if (!rc)
			rc = ranks_get_exact(ranks, 0, KEY_DECISION, 2 * ANSWER_MS, meeting, bytes,
					     err);
	}
	if (rc) {
		free(meeting);
		return rc;
	}
	*out = meeting;
	meeting->err.text[sizeof meeting->err.text - 1] = 0;
	return meeting->err.code ? error_set(err, meeting->err.code, "%s", meeting->err.text) : 0;
}
