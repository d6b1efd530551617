/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "base/module.h"

static const struct library {
	const char *title, *module, *symbol;
	int global; /* Open MPI's plug-ins look symbols up in the global scope */
} nccl = {"NCCL", "comm-nccl", "comm_nccl", 0}, mpi = {"MPI", "comm-mpi", "comm_mpi", 1},
  gloo = {"gloo", "comm-gloo", "comm_gloo", 0};

int comm_check_name(const char *name, struct error *err)
{
	static const char *const names[] = {"auto", "nccl", "mpi", "gloo", "self"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(name, names[i]))
			return 0;
	return error_set(
		err, ERR_USAGE,
		"unknown communication library '%s'; expected one of: auto, nccl, mpi, gloo, self",
		name);
}

static bool on_gpu(const struct comm_request *request)
{
	struct device_queue *queue = request->queue;

	return queue && queue->device->ops->queue_native(queue);
}

/* Would MPI_Init find the other ranks? */
static bool has_mpi_launcher(const struct env *env)
{
	/* torchrun's workers inherit what is meant for torchrun. */
	if (!env || env_get(env, "TORCHELASTIC_USE_AGENT_STORE"))
		return false;
	return (env_get(env, "PMIX_NAMESPACE") || env_get(env, "PMI_RANK") ||
		env_get(env, "OMPI_COMM_WORLD_SIZE"));
}

static int load_comm(const struct library *library, const char *search_path, void **ops,
		     struct error *err)
{
	return module_load(library->module, library->symbol, search_path, library->global, ops,
			   err);
}

static int load_automatic(const struct comm_request *request, const char *search_path,
			  struct comm_choice *out, struct error *err)
{
	void **ops = (void **)&out->ops;
	struct error no_mpi = {0};

	out->why = "every rank has a GPU";
	if (on_gpu(request) && !load_comm(&nccl, search_path, ops, &out->instead))
		return 0;
	out->why = "the launcher serves MPI";
	if (has_mpi_launcher(request->env) && !load_comm(&mpi, search_path, ops, &no_mpi))
		return 0;
	out->why = no_mpi.code ? "MPI is missing" : "the launcher serves no MPI";
	int rc = load_comm(&gloo, search_path, ops, err);

	if (no_mpi.code && !out->instead.code)
		out->instead = no_mpi;
	if (rc && no_mpi.code)
		*err = no_mpi;
	return rc ? error_prefix(err, "%d ranks need MPI or gloo", request->size) : 0;
}

static int load_named(const char *name, const struct comm_request *request, const char *search_path,
		      void **ops, struct error *err)
{
	const struct library *library = !strcmp(name, "nccl")  ? &nccl
					: !strcmp(name, "mpi") ? &mpi
							       : &gloo;

	if (library == &nccl && !on_gpu(request))
		return error_set(
			err, ERR_USAGE,
			"%d ranks need NCCL: --comm nccl requires GPUs, but this run trains "
			"on %s. Use --comm auto",
			request->size,
			request->queue ? request->queue->device->ops->name : "the CPU");
	return load_comm(library, search_path, ops, err)
		       ? error_prefix(err, "%d ranks need %s", request->size, library->title)
		       : 0;
}

int comm_choose(const char *name, const struct comm_request *request, const char *search_path,
		struct comm_choice *out, struct error *err)
{
	bool automatic = !strcmp(name, "auto");
	int rc = comm_check_name(name, err);

	*out = (struct comm_choice){0};
	if (rc)
		return rc;
	if (!strcmp(name, "self") || (automatic && request->size == 1)) {
		if (request->size != 1)
			return error_set(err, ERR_USAGE,
					 "--comm self supports one rank, but this job has %d. Use "
					 "--comm auto",
					 request->size);
		out->ops = &comm_self;
		return 0;
	}
	return automatic ? load_automatic(request, search_path, out, err)
			 : load_named(name, request, search_path, (void **)&out->ops, err);
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
