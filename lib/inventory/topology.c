/* SPDX-License-Identifier: BSD-3-Clause */
/* hwloc's topology as cores, NUMA nodes, the allowed set and places of devices.
 * hwloc_topology_check() is never called: it aborts on captures without Core and PU objects. */
#include "inventory/inventory_internal.h"

#include <string.h>

const char *obj_info(hwloc_obj_t obj, const char *name)
{
	return hwloc_obj_get_info_by_name(obj, name);
}

/* a & b as ids; ids that idset cannot hold are left out. */
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

/* The package that holds obj: above it in the tree, or around its CPUs; -1 when none does.
 * (In captures of hwloc 1 the NUMA node is above the package.) */
static int package_of(const struct build *build, hwloc_obj_t obj)
{
	hwloc_obj_t at =
		obj->type == HWLOC_OBJ_PACKAGE
			? obj
			: hwloc_get_ancestor_obj_by_type(build->topology, HWLOC_OBJ_PACKAGE, obj);

	if (at)
		return (int)at->logical_index;
	if (!obj->cpuset || hwloc_bitmap_iszero(obj->cpuset))
		return -1;
	for (at = NULL; (at = hwloc_get_next_obj_by_type(build->topology, HWLOC_OBJ_PACKAGE, at));)
		if (hwloc_bitmap_isincluded(obj->cpuset, at->cpuset))
			return (int)at->logical_index;
	return -1;
}

static hwloc_obj_t numa_at(const struct build *build, int numa_os)
{
	return hwloc_get_numanode_obj_by_os_index(build->topology, (unsigned)numa_os);
}

/* The narrowest NUMA node that has the CPU: where a core's memory is. -1 when none has. */
static int numa_of_cpu(const struct build *build, unsigned cpu)
{
	hwloc_obj_t best = NULL, at = NULL;

	while ((at = hwloc_get_next_obj_by_type(build->topology, HWLOC_OBJ_NUMANODE, at))) {
		if (!at->cpuset || !hwloc_bitmap_isset(at->cpuset, cpu))
			continue;
		if (!best || hwloc_bitmap_weight(at->cpuset) < hwloc_bitmap_weight(best->cpuset) ||
		    (hwloc_bitmap_isequal(at->cpuset, best->cpuset) &&
		     at->os_index < best->os_index))
			best = at;
	}
	return best ? (int)best->os_index : -1;
}

/* The nodes that are some CPU's own memory. hwloc gives a node without CPUs (a GPU's memory, HBM
 * beside DRAM) the CPUs of what it hangs on, so its cpuset does not tell. */
static int find_cpu_nodes(struct build *build)
{
	hwloc_const_cpuset_t all = hwloc_get_root_obj(build->topology)->cpuset;

	build->cpu_nodes = hwloc_bitmap_alloc();
	if (!build->cpu_nodes)
		return -1;
	for (int cpu = hwloc_bitmap_first(all); cpu >= 0 && cpu <= IDSET_MAX;
	     cpu = hwloc_bitmap_next(all, cpu)) {
		int node = numa_of_cpu(build, (unsigned)cpu);

		if (node >= 0 && hwloc_bitmap_set(build->cpu_nodes, (unsigned)node) != 0)
			return -1;
	}
	return 0;
}

static int package_of_cpu(const struct build *build, unsigned cpu)
{
	hwloc_obj_t at = NULL;

	while ((at = hwloc_get_next_obj_by_type(build->topology, HWLOC_OBJ_PACKAGE, at)))
		if (at->cpuset && hwloc_bitmap_isset(at->cpuset, cpu))
			return (int)at->logical_index;
	return 0;
}

static struct machine_core *add_core(struct build *build, unsigned cpu)
{
	struct machine *machine = build->machine;
	struct machine_core *cores =
		grow(machine->cores, machine->core_count, sizeof *machine->cores);

	if (!cores)
		return NULL;
	machine->cores = cores;

	struct machine_core *core = &cores[machine->core_count];

	core->core_logical = (int)machine->core_count;
	core->package = package_of_cpu(build, cpu);
	core->numa_os = numa_of_cpu(build, cpu);
	core->cpus_os = idset_new();
	machine->core_count++;
	return core->cpus_os ? core : NULL;
}

/* PUs in logical order; those below one Core object are one core. */
static int read_cores(struct build *build, struct error *err)
{
	hwloc_obj_t pu = NULL, last = NULL;
	struct machine_core *core = NULL;

	while ((pu = hwloc_get_next_obj_by_type(build->topology, HWLOC_OBJ_PU, pu))) {
		if (!hwloc_bitmap_isset(build->allowed, pu->os_index) || pu->os_index > IDSET_MAX)
			continue;

		hwloc_obj_t above =
			hwloc_get_ancestor_obj_by_type(build->topology, HWLOC_OBJ_CORE, pu);
		if (!core || !above || above != last) {
			core = add_core(build, pu->os_index);
			if (!core)
				return error_memory(err, "the cores");
		}
		last = above;
		if (idset_add(core->cpus_os, (int)pu->os_index) != 0)
			return error_memory(err, "the cores");
	}
	if (hwloc_get_nbobjs_by_type(build->topology, HWLOC_OBJ_PU) > 0)
		return 0;

	/* A capture without PUs: its CPUs are known from the sets alone, their siblings are not. */
	for (int cpu = idset_next(build->machine->allowed_cpus_os, -1); cpu >= 0;
	     cpu = idset_next(build->machine->allowed_cpus_os, cpu)) {
		core = add_core(build, (unsigned)cpu);
		if (!core || idset_add(core->cpus_os, cpu) != 0)
			return error_memory(err, "the cores");
	}
	machine_note(build->machine, "the topology has no cores: each of its CPUs counts as one");
	return 0;
}

static int read_numas(struct build *build, struct error *err)
{
	struct machine *machine = build->machine;
	hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(build->topology);
	hwloc_obj_t at = NULL;

	while ((at = hwloc_get_next_obj_by_type(build->topology, HWLOC_OBJ_NUMANODE, at))) {
		bool own = hwloc_bitmap_isset(build->cpu_nodes, at->os_index);
		struct idset *cpus = own ? ids_of(at->cpuset, build->allowed) : idset_new();
		int package = package_of(build, at);

		if (!cpus)
			return error_memory(err, "the NUMA nodes");
		if (!idset_count(cpus) && !hwloc_bitmap_isset(allowed, at->os_index)) {
			idset_free(cpus);
			continue;
		}

		struct machine_numa *numas =
			grow(machine->numas, machine->numa_count, sizeof *machine->numas);

		if (!numas) {
			idset_free(cpus);
			return error_memory(err, "the NUMA nodes");
		}
		machine->numas = numas;
		numas[machine->numa_count++] = (struct machine_numa){
			.numa_os = (int)at->os_index,
			.package = package < 0 ? 0 : package,
			.cpus_os = cpus,
			.memory_bytes = at->attr->numanode.local_memory,
		};
	}
	return 0;
}

int topology_read(struct build *build, struct error *err)
{
	struct machine *machine = build->machine;
	int packages = hwloc_get_nbobjs_by_type(build->topology, HWLOC_OBJ_PACKAGE);

	machine->package_count = packages > 0 ? (size_t)packages : 1;
	build->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(build->topology));
	if (!build->allowed)
		return error_memory(err, "the allowed CPUs");
	/* Captures may allow CPUs that are not in them (offline siblings). */
	hwloc_bitmap_and(build->allowed, build->allowed,
			 hwloc_get_root_obj(build->topology)->cpuset);
	if (!build->source->topology_file) {
		hwloc_bitmap_t bound = hwloc_bitmap_alloc();

		/* What taskset or a scheduler bound us to is all that we may hand on. */
		if (bound &&
		    hwloc_get_cpubind(build->topology, bound, HWLOC_CPUBIND_PROCESS) == 0 &&
		    hwloc_bitmap_intersects(bound, build->allowed))
			hwloc_bitmap_and(build->allowed, build->allowed, bound);
		hwloc_bitmap_free(bound);
	}
	machine->allowed_cpus_os = ids_of(build->allowed, NULL);
	if (!machine->allowed_cpus_os)
		return error_memory(err, "the allowed CPUs");
	if (!idset_count(machine->allowed_cpus_os))
		return error_set(err, ERR_DATA,
				 "%s: no CPU that this job may use; expected at least one",
				 machine->source);

	if (find_cpu_nodes(build) != 0)
		return error_memory(err, "the NUMA nodes");

	int rc = read_cores(build, err);

	return rc ? rc : read_numas(build, err);
}

/* Nodes of set; those without CPUs (a GPU's memory, HBM) only where there are no others. */
static struct idset *nodes_with_cpus(const struct build *build, hwloc_const_nodeset_t nodeset)
{
	struct idset *all = ids_of(nodeset, NULL), *with = idset_new();

	for (int id = idset_next(all, -1); all && with && id >= 0; id = idset_next(all, id))
		if (hwloc_bitmap_isset(build->cpu_nodes, (unsigned)id))
			idset_add(with, id);
	if (with && idset_count(with)) {
		idset_free(all);
		return with;
	}
	idset_free(with);
	return all;
}

/* The one package of all nodes of the set, -1 when there are several or none is known. */
static int package_of_nodes(const struct build *build, const struct idset *nodes)
{
	int package = -1;

	for (int id = idset_next(nodes, -1); id >= 0; id = idset_next(nodes, id)) {
		hwloc_obj_t node = numa_at(build, id);
		int of = node ? package_of(build, node) : -1;

		if (of < 0 || (package >= 0 && package != of))
			return -1;
		package = of;
	}
	return package;
}

void place_clear(struct place *place)
{
	idset_free(place->numa_os);
	idset_free(place->cpus_os);
	*place = (struct place){.package = -1};
}

static int place_finish(const struct build *build, hwloc_obj_t around, struct place *place,
			struct error *err)
{
	hwloc_obj_t root = hwloc_get_root_obj(build->topology);
	struct idset *everything = nodes_with_cpus(build, root->nodeset);

	if (!place->numa_os || !place->cpus_os || !everything) {
		idset_free(everything);
		place_clear(place);
		return error_memory(err, "a device's place");
	}
	place->package = around ? package_of(build, around) : -1;
	if (place->package < 0)
		place->package = package_of_nodes(build, place->numa_os);
	if (build->machine->package_count == 1)
		place->package = 0;
	place->known = build->machine->package_count == 1 || place->package >= 0 ||
		       (idset_count(place->numa_os) && !idset_equal(place->numa_os, everything));
	idset_free(everything);
	return 0;
}

int place_of(const struct build *build, hwloc_obj_t obj, struct place *out, struct error *err)
{
	hwloc_obj_t around = hwloc_get_non_io_ancestor_obj(build->topology, obj);
	struct place place = {.package = -1};

	place.numa_os = nodes_with_cpus(build, around->nodeset);
	place.cpus_os = ids_of(around->cpuset, build->allowed);

	int rc = place_finish(build, around, &place, err);

	if (!rc)
		*out = place;
	return rc;
}

int place_of_numa(const struct build *build, int numa_os, struct place *out, struct error *err)
{
	/* "-1" is what /sys tells on machines of one node. */
	if (numa_os < 0 && hwloc_bitmap_weight(build->cpu_nodes) == 1)
		numa_os = hwloc_bitmap_first(build->cpu_nodes);

	hwloc_obj_t node = numa_os >= 0 ? numa_at(build, numa_os) : NULL;
	hwloc_obj_t around = node ? node : hwloc_get_root_obj(build->topology);
	struct place place = {.package = -1};

	place.numa_os = node ? nodes_with_cpus(build, node->nodeset) : idset_new();
	place.cpus_os = ids_of(around->cpuset, build->allowed);

	int rc = place_finish(build, node, &place, err);

	if (!rc)
		*out = place;
	return rc;
}

hwloc_obj_t topology_pci(const struct build *build, const char *pci)
{
	struct pci_id id;

	return pci_parse(pci, &id) == 0 ? hwloc_get_pcidev_by_busid(build->topology, id.domain,
								    id.bus, id.dev, id.func)
					: NULL;
}
