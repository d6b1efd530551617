/* SPDX-License-Identifier: BSD-3-Clause */
/* This rank's part of a berth.plan/1. Unknown members, which /1 may gain, are ignored; the types of
 * known ones are checked strictly. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "libberth.h"

#define PLAN_FILE_MAX (64u << 20)

void local_plan_free(struct local_plan *own)
{
	json_decref(own->json);
	free(own->gpus);
	free(own->nics);
	*own = (struct local_plan){0};
}

/* A string or null. */
static int optional_string(const char *what, const json_t *object, const char *key,
			   const char **out, struct error *err)
{
	const json_t *value = json_object_get(object, key);

	*out = NULL;
	if (!value || json_is_null(value))
		return 0;
	return json_get_string(what, object, key, out, err);
}

static int read_int(const char *what, const json_t *object, const char *key, int *out,
		    struct error *err)
{
	int64_t value;
	int rc = json_get_int(what, object, key, 0, INT_MAX, &value, err);

	if (!rc)
		*out = (int)value;
	return rc;
}

static int read_gpu(const json_t *json, struct berth_gpu *gpu, struct error *err)
{
	int rc = json_get_string("a GPU", json, "pci", &gpu->pci, err);

	if (!rc)
		rc = optional_string("a GPU", json, "uuid", &gpu->uuid, err);
	if (!rc)
		rc = read_int("a GPU", json, "index", &gpu->index, err);
	return rc ? rc : read_int("a GPU", json, "ordinal", &gpu->ordinal, err);
}

static int read_nic(const json_t *json, struct berth_nic *nic, struct error *err)
{
	int rc = optional_string("a NIC", json, "net", &nic->net, err);

	if (!rc)
		rc = optional_string("a NIC", json, "rdma", &nic->rdma, err);
	if (!rc)
		rc = optional_string("a NIC", json, "pci", &nic->pci, err);
	if (!rc)
		rc = json_get_string("a NIC", json, "kind", &nic->kind, err);
	if (!rc)
		rc = json_get_string("a NIC", json, "path", &nic->path, err);
	if (!rc)
		rc = read_int("a NIC", json, "port", &nic->port, err);
	nic->up = json_is_true(json_object_get(json, "up"));
	return rc;
}

static int read_rank(const json_t *rank, struct local_plan *own, struct error *err)
{
	json_t *gpus, *nics;
	int rc = json_get_string("the rank", rank, "cpus", &own->plan.cpus, err);

	if (!rc)
		rc = json_get_string("the rank", rank, "numa", &own->plan.numa, err);
	if (!rc)
		rc = json_get_string("the rank", rank, "why", &own->plan.why, err);
	if (!rc)
		rc = read_int("the rank", rank, "threads", &own->plan.threads, err);
	if (!rc)
		rc = json_get_array("the rank", rank, "gpus", &gpus, err);
	if (!rc)
		rc = json_get_array("the rank", rank, "nics", &nics, err);
	if (rc)
		return rc;
	own->plan.gpu_count = json_array_size(gpus);
	own->plan.nic_count = json_array_size(nics);
	own->gpus = calloc(own->plan.gpu_count + 1, sizeof *own->gpus);
	own->nics = calloc(own->plan.nic_count + 1, sizeof *own->nics);
	if (!own->gpus || !own->nics)
		return error_memory(err, "the plan");
	own->plan.gpus = own->gpus;
	own->plan.nics = own->nics;
	for (size_t i = 0; i < own->plan.gpu_count && !rc; i++)
		rc = read_gpu(json_array_get(gpus, i), &own->gpus[i], err);
	for (size_t i = 0; i < own->plan.nic_count && !rc; i++)
		rc = read_nic(json_array_get(nics, i), &own->nics[i], err);
	return rc;
}

int local_plan_read(const char *path, int local_rank, struct local_plan *out, struct error *err)
{
	struct local_plan own = {0};
	const json_t *mine = NULL;
	json_t *ranks, *rank;
	size_t index;
	int rc = json_read_file(path, PLAN_FILE_MAX, &own.json, err);

	if (!rc)
		rc = json_get_array(path, own.json, "ranks", &ranks, err);
	if (rc)
		goto failed;
	json_array_foreach(ranks, index, rank)
	{
		int number;

		rc = read_int(path, rank, "local_rank", &number, err);
		if (rc)
			goto failed;
		if (number == local_rank)
			mine = rank;
	}
	rc = mine ? read_rank(mine, &own, err)
		  : error_set(err, ERR_DATA, "it has no local rank %d", local_rank);
	if (rc)
		goto failed;
	*out = own;
	return 0;
failed:
	local_plan_free(&own);
	return error_prefix(err, "BERTH_PLAN_FILE %s", path);
}
