/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "base/module.h"

int comm_check_name(const char *name, struct error *err)
{
	static const char *const names[] = {"auto", "nccl", "mpi", "self"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(name, names[i]))
			return 0;
	return error_set(
		err, ERR_USAGE,
		"unknown communication library '%s'; expected one of: auto, nccl, mpi, self", name);
}

static bool on_gpu(const struct comm_request *request)
{
	struct device_queue *queue = request->queue;

	return queue && queue->device->ops->queue_native(queue);
}

/* Return 0 with *ops NULL if the module is not installed and automatic allows that. */
static int nccl_load(const struct comm_request *request, bool automatic, const char *search_path,
		     void **ops, struct error *err)
{
	*ops = NULL;
	if (!on_gpu(request))
		return automatic ? 0
				 : error_set(err, ERR_USAGE,
					     "--comm nccl requires GPUs, but this run trains on "
					     "%s. Use --comm mpi",
					     request->queue ? request->queue->device->ops->name
							    : "the CPU");
	int rc = module_load(COMM_NCCL_MODULE, "comm_nccl", search_path, 0, ops,
			     automatic ? NULL : err);

	return automatic ? 0 : rc;
}

int comm_open(const char *name, const struct comm_request *request, const char *search_path,
	      struct comm **out, struct error *err)
{
	bool automatic = !strcmp(name, "auto");
	int rc = comm_check_name(name, err);
	void *ops = NULL;

	if (rc)
		return rc;
	if (!strcmp(name, "self") || (automatic && request->size == 1)) {
		if (request->size != 1)
			return error_set(err, ERR_USAGE,
					 "--comm self supports one rank, but this job has %d. Use "
					 "--comm auto",
					 request->size);
		return comm_self.open(request, out, err);
	}
	if (automatic || !strcmp(name, "nccl"))
		rc = nccl_load(request, automatic, search_path, &ops, err);
	/* Load it with global symbols: Open MPI's plug-ins look them up in the global scope. */
	if (!rc && !ops)
		rc = module_load(COMM_MPI_MODULE, "comm_mpi", search_path, 1, &ops, err);
	if (rc)
		return error_prefix(err, "%d ranks need %s", request->size,
				    !strcmp(name, "nccl") ? "NCCL" : "MPI");
	return ((const struct comm_ops *)ops)->open(request, out, err);
}

/* Move host values through device memory, which collectives require; on a CPU this copies a few
 * bytes. */
static int staged(struct comm *comm, struct device_queue *queue, void *data, size_t size_bytes,
		  int root, size_t count, enum comm_reduce reduce, struct error *err)
{
	const struct device_ops *ops = queue->device->ops;
	void *memory;
	int rc = ops->memory_new(queue->device, size_bytes, &memory, err);

	if (rc)
		return rc;
	rc = ops->copy_in(queue, memory, data, size_bytes, err);
	if (!rc)
		rc = root >= 0 ? comm->ops->broadcast(comm, queue, memory, size_bytes, root, err)
			       : comm->ops->all_reduce(comm, queue, memory, count, ELEMENT_F64,
						       reduce, err);
	if (!rc)
		rc = comm->ops->finish(comm, queue, err);
	if (!rc)
		rc = ops->copy_out(queue, data, memory, size_bytes, err);
	/* An aborted GPU collective leaves undefined data, which must not be used. */
	if (!rc)
		rc = comm->ops->progress(comm, err);
	/* After a failure a collective may still write to it. */
	if (!rc)
		ops->memory_free(queue->device, memory);
	return rc;
}

int comm_reduce_on_host(struct comm *comm, struct device_queue *queue, double *values, size_t count,
			enum comm_reduce reduce, struct error *err)
{
	return staged(comm, queue, values, count * sizeof *values, -1, count, reduce, err);
}

int comm_broadcast_on_host(struct comm *comm, struct device_queue *queue, void *data,
			   size_t size_bytes, int root, struct error *err)
{
	return size_bytes ? staged(comm, queue, data, size_bytes, root, 0, COMM_SUM, err) : 0;
}
