/* SPDX-License-Identifier: BSD-3-Clause */
/* Convert hwloc's topology to cores, NUMA nodes, the allowed set and the locality of devices. Never
 * call hwloc_topology_check(): it aborts on captures without Core and PU objects. */
#include "inventory/inventory_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

const char *topology_obj_info(hwloc_obj_t obj, const char *name)
{
	return hwloc_obj_get_info_by_name(obj, name);
}

/* a & b as ids; ids too large for idset are left out. */
static struct idset *ids_of(hwloc_const_bitmap_t a, hwloc_const_bitmap_t b)
{
	struct idset *set = idset_new();

	if (!set || !a)
		return set;
	for (int id = hwloc_bitmap_first(a); id >= 0 && id <= IDSET_MAX;
	     id = hwloc_bitmap_next(a, id)) {
		if (b && !hwloc_bitmap_isset(b, (unsigned)id))
			continue;
		if (idset_add(set, id) != 0) {
			idset_free(set);
			return NULL;
		}
	}
	return set;
}

/* The package that contains obj: above it in the tree, or around its CPUs; -1 if there is none. In
 * captures of hwloc 1 the NUMA node is above the package. */
static int package_of(const struct discovery *discovery, hwloc_obj_t obj)
{
	hwloc_obj_t at = obj->type == HWLOC_OBJ_PACKAGE
				 ? obj
				 : hwloc_get_ancestor_obj_by_type(discovery->topology,
								  HWLOC_OBJ_PACKAGE, obj);

	if (at)
		return (int)at->logical_index;
	if (!obj->cpuset || hwloc_bitmap_iszero(obj->cpuset))
		return -1;
	for (at = NULL;
	     (at = hwloc_get_next_obj_by_type(discovery->topology, HWLOC_OBJ_PACKAGE, at));)
		if (hwloc_bitmap_isincluded(obj->cpuset, at->cpuset))
			return (int)at->logical_index;
	return -1;
}

static hwloc_obj_t numa_at(const struct discovery *discovery, int numa_os)
{
	return hwloc_get_numanode_obj_by_os_index(discovery->topology, (unsigned)numa_os);
}

/* The narrowest NUMA node that contains the CPU, which is where a core's memory is; -1 if none
 * does. */
static int numa_of_cpu(const struct discovery *discovery, unsigned cpu)
{
	hwloc_obj_t best = NULL, at = NULL;

	while ((at = hwloc_get_next_obj_by_type(discovery->topology, HWLOC_OBJ_NUMANODE, at))) {
		if (!at->cpuset || !hwloc_bitmap_isset(at->cpuset, cpu))
			continue;
		if (!best || hwloc_bitmap_weight(at->cpuset) < hwloc_bitmap_weight(best->cpuset) ||
		    (hwloc_bitmap_isequal(at->cpuset, best->cpuset) &&
		     at->os_index < best->os_index))
			best = at;
	}
	return best ? (int)best->os_index : -1;
}

/* Find the nodes that are the local memory of some CPU. hwloc gives a node without CPUs (a GPU's
 * memory, HBM next to DRAM) the CPUs of its parent, so its cpuset does not show this. */
static int find_cpu_nodes(struct discovery *discovery)
{
	hwloc_const_cpuset_t all = hwloc_get_root_obj(discovery->topology)->cpuset;

	discovery->cpu_nodes = hwloc_bitmap_alloc();
	if (!discovery->cpu_nodes)
		return -1;
	for (int cpu = hwloc_bitmap_first(all); cpu >= 0 && cpu <= IDSET_MAX;
	     cpu = hwloc_bitmap_next(all, cpu)) {
		int node = numa_of_cpu(discovery, (unsigned)cpu);

		if (node >= 0 && hwloc_bitmap_set(discovery->cpu_nodes, (unsigned)node) != 0)
			return -1;
	}
	return 0;
}

static int package_of_cpu(const struct discovery *discovery, unsigned cpu)
{
	hwloc_obj_t at = NULL;

	while ((at = hwloc_get_next_obj_by_type(discovery->topology, HWLOC_OBJ_PACKAGE, at)))
		if (at->cpuset && hwloc_bitmap_isset(at->cpuset, cpu))
			return (int)at->logical_index;
	return 0;
}

static struct inventory_core *add_core(struct discovery *discovery, unsigned cpu)
{
	struct inventory *inventory = discovery->inventory;
	struct inventory_core *core =
		array_add(&inventory->cores, &inventory->core_count, sizeof *core);

	if (!core)
		return NULL;
	core->core_logical = (int)inventory->core_count - 1;
	core->package = package_of_cpu(discovery, cpu);
	core->numa_os = numa_of_cpu(discovery, cpu);
	core->cpus_os = idset_new();
	return core->cpus_os ? core : NULL;
}

/* PUs in logical order; those below one Core object are one core. */
static int read_cores(struct discovery *discovery, struct error *err)
{
	hwloc_obj_t pu = NULL, last = NULL;
	struct inventory_core *core = NULL;
	int all = hwloc_get_nbobjs_by_type(discovery->topology, HWLOC_OBJ_CORE);

	discovery->inventory->node_core_count = all > 0 ? all : -1;
	while ((pu = hwloc_get_next_obj_by_type(discovery->topology, HWLOC_OBJ_PU, pu))) {
		if (!hwloc_bitmap_isset(discovery->allowed, pu->os_index) ||
		    pu->os_index > IDSET_MAX)
			continue;

		hwloc_obj_t above =
			hwloc_get_ancestor_obj_by_type(discovery->topology, HWLOC_OBJ_CORE, pu);
		if (!core || !above || above != last) {
			core = add_core(discovery, pu->os_index);
			if (!core)
				return error_memory(err, "the cores");
		}
		last = above;
		if (idset_add(core->cpus_os, (int)pu->os_index) != 0)
			return error_memory(err, "the cores");
	}
	if (hwloc_get_nbobjs_by_type(discovery->topology, HWLOC_OBJ_PU) > 0)
		return 0;

	/* A capture without PUs: only the sets show its CPUs, and siblings are unknown. */
	for (int cpu = idset_next(discovery->inventory->allowed_cpus_os, -1); cpu >= 0;
	     cpu = idset_next(discovery->inventory->allowed_cpus_os, cpu)) {
		core = add_core(discovery, (unsigned)cpu);
		if (!core || idset_add(core->cpus_os, cpu) != 0)
			return error_memory(err, "the cores");
	}
	inventory_note(discovery->inventory,
		       "the topology has no cores; each CPU counts as a core");
	return 0;
}

static int compare_numas(const void *a, const void *b)
{
	return ((const struct inventory_numa *)a)->numa_os -
	       ((const struct inventory_numa *)b)->numa_os;
}

/* By number: the order of nodes with and without cores depends on hwloc's version. */
static int read_numas(struct discovery *discovery, struct error *err)
{
	struct inventory *inventory = discovery->inventory;
	hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(discovery->topology);
	hwloc_obj_t at = NULL;

	while ((at = hwloc_get_next_obj_by_type(discovery->topology, HWLOC_OBJ_NUMANODE, at))) {
		bool own = hwloc_bitmap_isset(discovery->cpu_nodes, at->os_index);
		struct idset *cpus = own ? ids_of(at->cpuset, discovery->allowed) : idset_new();
		int package = package_of(discovery, at);

		if (!cpus)
			return error_memory(err, "the NUMA nodes");
		if (!idset_count(cpus) && !hwloc_bitmap_isset(allowed, at->os_index)) {
			idset_free(cpus);
			continue;
		}

		struct inventory_numa *numa =
			array_add(&inventory->numas, &inventory->numa_count, sizeof *numa);

		if (!numa) {
			idset_free(cpus);
			return error_memory(err, "the NUMA nodes");
		}
		*numa = (struct inventory_numa){
			.numa_os = (int)at->os_index,
			.package = package < 0 ? 0 : package,
			.cpus_os = cpus,
			.memory_bytes = at->attr->numanode.local_memory,
		};
	}
	if (inventory->numa_count)
		qsort(inventory->numas, inventory->numa_count, sizeof *inventory->numas,
		      compare_numas);
	return 0;
}

int topology_read(struct discovery *discovery, struct error *err)
{
	struct inventory *inventory = discovery->inventory;
	int packages = hwloc_get_nbobjs_by_type(discovery->topology, HWLOC_OBJ_PACKAGE);

	inventory->package_count = packages > 0 ? (size_t)packages : 1;
	discovery->allowed =
		hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(discovery->topology));
	if (!discovery->allowed)
		return error_memory(err, "the allowed CPUs");
	/* Captures may allow CPUs that are not in them (offline siblings). */
	hwloc_bitmap_and(discovery->allowed, discovery->allowed,
			 hwloc_get_root_obj(discovery->topology)->cpuset);
	if (!discovery->source->topology_file) {
		hwloc_bitmap_t bound = hwloc_bitmap_alloc();

		/* berth may only hand on what taskset or a scheduler bound it to. */
		if (bound &&
		    hwloc_get_cpubind(discovery->topology, bound, HWLOC_CPUBIND_PROCESS) == 0 &&
		    hwloc_bitmap_intersects(bound, discovery->allowed))
			hwloc_bitmap_and(discovery->allowed, discovery->allowed, bound);
		hwloc_bitmap_free(bound);
	}
	inventory->allowed_cpus_os = ids_of(discovery->allowed, NULL);
	if (!inventory->allowed_cpus_os)
		return error_memory(err, "the allowed CPUs");
	if (!idset_count(inventory->allowed_cpus_os))
		return error_set(err, ERR_DATA,
				 "%s: this job may use none of its CPUs; expected at least one",
				 inventory->source);

	if (find_cpu_nodes(discovery) != 0)
		return error_memory(err, "the NUMA nodes");

	int rc = read_cores(discovery, err);

	return rc ? rc : read_numas(discovery, err);
}

/* NUMA nodes of the set. Those without CPUs (a GPU's memory, HBM) count only if there are no
 * others. */
static struct idset *nodes_with_cpus(const struct discovery *discovery,
				     hwloc_const_nodeset_t nodeset)
{
	struct idset *all = ids_of(nodeset, NULL), *with = idset_new();

	for (int id = idset_next(all, -1); all && with && id >= 0; id = idset_next(all, id))
		if (hwloc_bitmap_isset(discovery->cpu_nodes, (unsigned)id))
			idset_add(with, id);
	if (with && idset_count(with)) {
		idset_free(all);
		return with;
	}
	idset_free(with);
	return all;
}

/* The one package of all nodes of the set; -1 if there are several or none is known. */
static int package_of_nodes(const struct discovery *discovery, const struct idset *nodes)
{
	int package = -1;

	for (int id = idset_next(nodes, -1); id >= 0; id = idset_next(nodes, id)) {
		hwloc_obj_t node = numa_at(discovery, id);
		int of = node ? package_of(discovery, node) : -1;

		if (of < 0 || (package >= 0 && package != of))
			return -1;
		package = of;
	}
	return package;
}

/* Fill in *out, which takes over the sets; NULL means that memory was out. */
static int set_locality(const struct discovery *discovery, hwloc_obj_t around,
			struct idset *numa_os, struct idset *cpus_os, struct locality *out,
			struct error *err)
{
	hwloc_obj_t root = hwloc_get_root_obj(discovery->topology);
	struct idset *everything = nodes_with_cpus(discovery, root->nodeset);
	/* With one package every device is on it, also one whose place hwloc does not know. */
	bool one_package = discovery->inventory->package_count == 1;
	int package = around ? package_of(discovery, around) : -1;

	if (!numa_os || !cpus_os || !everything) {
		idset_free(everything);
		idset_free(numa_os);
		idset_free(cpus_os);
		return error_memory(err, "a device's locality");
	}
	if (package < 0)
		package = package_of_nodes(discovery, numa_os);
	*out = (struct locality){
		.numa_os = numa_os,
		.cpus_os = cpus_os,
		.package = one_package ? 0 : package,
		.known = one_package || package >= 0 ||
			 (idset_count(numa_os) && !idset_equal(numa_os, everything))};
	idset_free(everything);
	return 0;
}

int topology_locality_of(const struct discovery *discovery, hwloc_obj_t obj, struct locality *out,
			 struct error *err)
{
	hwloc_obj_t around = hwloc_get_non_io_ancestor_obj(discovery->topology, obj);

	return set_locality(discovery, around, nodes_with_cpus(discovery, around->nodeset),
			    ids_of(around->cpuset, discovery->allowed), out, err);
}

int topology_locality_of_numa(const struct discovery *discovery, int numa_os, struct locality *out,
			      struct error *err)
{
	/* /sys has -1 on machines with one node. */
	if (numa_os < 0 && hwloc_bitmap_weight(discovery->cpu_nodes) == 1)
		numa_os = hwloc_bitmap_first(discovery->cpu_nodes);

	hwloc_obj_t node = numa_os >= 0 ? numa_at(discovery, numa_os) : NULL;
	hwloc_obj_t around = node ? node : hwloc_get_root_obj(discovery->topology);

	return set_locality(discovery, node,
			    node ? nodes_with_cpus(discovery, node->nodeset) : idset_new(),
			    ids_of(around->cpuset, discovery->allowed), out, err);
}

hwloc_obj_t topology_pci(const struct discovery *discovery, const char *pci)
{
	struct pci_id id;

	return pci_parse(pci, &id) == 0 ? hwloc_get_pcidev_by_busid(discovery->topology, id.domain,
								    id.bus, id.dev, id.func)
					: NULL;
}
