/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "base/module.h"

int comm_known(const char *name, struct error *err)
{
	if (!strcmp(name, "auto") || !strcmp(name, "mpi") || !strcmp(name, "self"))
		return 0;
	return error_set(err, ERR_USAGE, "there is no comm '%s'; this build has: auto, mpi, self",
			 name);
}

int comm_open(const char *name, const struct comm_request *request, const char *search_path,
	      struct comm **out, struct error *err)
{
	bool automatic = !strcmp(name, "auto");
	int rc = comm_known(name, err);

	if (rc)
		return rc;
	if (!strcmp(name, "self") || (automatic && request->size == 1)) {
		if (request->size != 1)
			return error_set(err, ERR_USAGE,
					 "--comm self is for one rank; this job has %d: "
					 "use --comm mpi",
					 request->size);
		return comm_self.open(request, out, err);
	}

	void *ops;
	/* Open MPI's plug-ins look for its symbols in the global scope. */
	rc = module_load(COMM_MPI_MODULE, "comm_mpi", search_path, 1, &ops, err);

	if (rc)
		return error_prefix(err, "%d ranks need MPI", request->size);
	return ((const struct comm_ops *)ops)->open(request, out, err);
}

/* Host values through device memory, as collectives take it; on a CPU a copy of a few bytes. */
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
	/* After a failure a collective may still write there. */
	if (!rc)
		ops->memory_free(queue->device, memory);
	return rc;
}

int comm_agree(struct comm *comm, struct device_queue *queue, double *values, size_t count,
	       enum comm_reduce reduce, struct error *err)
{
	return staged(comm, queue, values, count * sizeof *values, -1, count, reduce, err);
}

int comm_share(struct comm *comm, struct device_queue *queue, void *data, size_t size_bytes,
	       int root, struct error *err)
{
	return size_bytes ? staged(comm, queue, data, size_bytes, root, 0, COMM_SUM, err) : 0;
}
