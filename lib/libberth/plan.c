/* SPDX-License-Identifier: BSD-3-Clause */
/* This rank's part of a berth.plan/1, as lib/plan/plan_json.c writes it. Members that berth adds
 * within version 1 are ignored; the members named here must have the right type. */
#include <limits.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/json_fields.h"
#include "libberth.h"

#define PLAN_FILE_MAX (64u << 20)

void local_plan_free(struct local_plan *own)
{
	json_decref(own->json);
	free(own->gpus);
	free(own->nics);
	*own = (struct local_plan){0};
}

/* Store 1 for true, and 0 for any other value. */
static int up_read(const struct json_field *field, const json_t *json, void *owner,
		   const char *what, struct error *err)
{
	*(int *)json_member(field, owner) = json_is_true(json);
	return 0;
}

static const struct json_type as_up = {.read = up_read};

#define GPU(member) JSON_MEMBER(struct berth_gpu, member)
#define NIC(member) JSON_MEMBER(struct berth_nic, member)
#define OWN(member) JSON_MEMBER(struct local_plan, member)
#define MAY_LACK (JSON_READ_MISSING | JSON_READ_NULL)

static const struct json_field gpu_members[] = {
	{"pci", &json_as_borrowed, GPU(pci)},
	{"uuid", &json_as_borrowed, GPU(uuid), MAY_LACK},
	{"index", &json_as_number, GPU(index), .max = INT_MAX},
	{"ordinal", &json_as_number, GPU(ordinal), .max = INT_MAX},
	{0}};

static const struct json_field nic_members[] = {
	{"net", &json_as_borrowed, NIC(net), MAY_LACK},
	{"rdma", &json_as_borrowed, NIC(rdma), MAY_LACK},
	{"pci", &json_as_borrowed, NIC(pci), MAY_LACK},
	{"kind", &json_as_borrowed, NIC(kind)},
	{"path", &json_as_borrowed, NIC(path)},
	{"port", &json_as_number, NIC(port), .max = INT_MAX},
	{"up", &as_up, NIC(up)},
	{0}};

static const struct json_field rank_members[] = {
	{"cpus", &json_as_borrowed, OWN(plan.cpus)},
	{"numa", &json_as_borrowed, OWN(plan.numa)},
	{"why", &json_as_borrowed, OWN(plan.why)},
	{"threads", &json_as_number, OWN(plan.threads), .max = INT_MAX},
	{"gpus", &json_as_list, JSON_LIST(struct local_plan, gpus, plan.gpu_count),
	 .entry = &json_as_object, .members = gpu_members, .called = "a GPU"},
	{"nics", &json_as_list, JSON_LIST(struct local_plan, nics, plan.nic_count),
	 .entry = &json_as_object, .members = nic_members, .called = "a NIC"},
	{0}};

int local_plan_read(const char *path, int local_rank, struct local_plan *out, struct error *err)
{
	struct local_plan own = {0};
	json_t *ranks, *rank, *mine = NULL;
	size_t index;
	int rc = json_read_file(path, PLAN_FILE_MAX, &own.json, err);

	if (!rc)
		rc = json_get_array(path, own.json, "ranks", &ranks, err);
	if (rc)
		goto failed;
	json_array_foreach(ranks, index, rank)
	{
		int64_t number;

		rc = json_get_int(path, rank, "local_rank", 0, INT_MAX, &number, err);
		if (rc)
			goto failed;
		if (number == local_rank)
			mine = rank;
	}
	rc = mine ? json_fields_read(rank_members, mine, &own, "the rank", err)
		  : error_set(err, ERR_DATA, "local rank %d is missing", local_rank);
	if (rc)
		goto failed;
	own.plan.gpus = own.gpus;
	own.plan.nics = own.nics;
	*out = own;
	return 0;
failed:
	local_plan_free(&own);
	return error_prefix(err, "BERTH_PLAN_FILE %s", path);
}
