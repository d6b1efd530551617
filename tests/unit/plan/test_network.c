/* SPDX-License-Identifier: BSD-3-Clause */
/* The rendezvous address, and each node's interface in its subnet. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inventories.h"
#include "plan/plan_internal.h"

#define MAX_ADDRESSES 10

/* One choice of a rendezvous address. A mark after the interface's name describes it: '!' down, '~'
 * virtual. The name gives the kind: ib* InfiniBand, hsn* Slingshot, roce* RoCE, else Ethernet. */
struct row {
	const char *first_node[MAX_ADDRESSES]; /* "eth0 10.0.0.1/24" */
	const char *other[4];		       /* of the second node; empty: there is one node */
	struct plan_request request;
	int reached[MAX_ADDRESSES]; /* nodes that reach each address; all 0: reach is NULL */
	const char *expected;	    /* "ADDRESS IFACE SUBNET OTHER-IFACE", or part of the error */
	const char *reason;
};

static const struct row rows[] = {
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .expected = "127.0.0.1 lo  ",
	 .reason = "one node: loopback"},
	{{"lo ::1/128", "eth0 fd00::1/64"},
	 .expected = "::1 lo  ",
	 .reason = "one node without IPv4"},
	{{NULL},
	 .expected = "127.0.0.1 lo  ",
	 .reason = "one node whose inventory has no addresses"},
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .request = {.iface = "eth0"},
	 .expected = "10.0.0.1 eth0  ",
	 .reason = "one node: a request takes effect"},
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24", "hsn0 10.1.0.1/16"},
	 .other = {"eth0 10.0.0.2/24", "hsn0 10.1.0.2/16"},
	 .expected = "10.1.0.1 hsn0 10.1.0.0/16 hsn0",
	 .reason = "Slingshot before the management network"},
	{{"eth0 10.0.0.1/24", "ib1 10.2.0.1/16", "ib0 10.1.0.1/16"},
	 .other = {"ib0 10.1.0.2/16", "ib1 10.2.0.2/16"},
	 .expected = "10.1.0.1 ib0 10.1.0.0/16 ib0",
	 .reason = "equal networks: sorted by name"},
	{{"ib10 10.2.0.1/16", "ib9 10.1.0.1/16"},
	 .other = {"ib9 10.1.0.2/16"},
	 .expected = "10.1.0.1 ib9 10.1.0.0/16 ib9",
	 .reason = "numbers in names are compared as numbers"},
	{{"ib0 10.1.0.1/16"},
	 .other = {"ib5 10.1.0.2/16", "ib0 10.9.0.2/16"},
	 .expected = "10.1.0.1 ib0 10.1.0.0/16 ib5",
	 .reason = "another name on another node: the subnet decides"},
	{{"eth0 10.0.0.1/24", "ib0 10.1.0.1/16"},
	 .other = {"eth0 10.0.0.2/24", "ib0 10.1.0.2/16"},
	 .reached = {2, 1},
	 .expected = "10.0.0.1 eth0 10.0.0.0/24 eth0",
	 .reason = "an address that all nodes reach comes first"},
	{{"eth0 10.0.0.1/24", "ib0 10.1.0.1/16"},
	 .other = {"eth0 10.0.0.2/24"},
	 .reached = {2, 0},
	 .expected = "10.0.0.1 eth0 10.0.0.0/24 eth0",
	 .reason = "only the first node reaches the other address"},
	{{"eth0 10.0.0.1/24", "ib0 10.1.0.1/16"},
	 .other = {"eth0 10.0.0.2/24"},
	 .reached = {1, 1},
	 .expected = "ib0 10.1.0.1 (only 1 of 2 nodes can reach it; other has no address in "
		     "10.1.0.0/16)",
	 .reason = "no address is reached by all: the error lists every address"},
	{{"lo 127.0.0.1/8", "eth0 169.254.3.4/16", "eth1 fe80::1/64", "docker0~ 172.17.0.1/16",
	  "eth2! 10.4.0.1/16"},
	 .other = {"lo 127.0.0.1/8"},
	 .expected = "docker0 172.17.0.1 (interface of a container, VM or tunnel)",
	 .reason = "loopback, link-local addresses and container bridges are never used"},
	{{"lo 127.0.0.1/8", "eth0 169.254.3.4/16", "eth2! 10.4.0.1/16"},
	 .other = {"lo 127.0.0.1/8"},
	 .expected = "lo 127.0.0.1 (loopback); eth0 169.254.3.4 (link-local); eth2 10.4.0.1 (down)",
	 .reason = "the error gives the reason for each candidate"},
	{{"lo 127.0.0.1/8", "eth0! 10.4.0.1/16"},
	 .other = {"lo 127.0.0.1/8"},
	 .expected = "lo 127.0.0.1 (loopback); eth0 10.4.0.1 (down). Choose one with --iface "
		     "(--iface lo if all nodes are this machine), ",
	 .reason = "only loopback is up: the error shows how to use it"},
	{{"lo 127.0.0.1/8"},
	 .other = {"lo 127.0.0.1/8"},
	 .request = {.iface = "lo"},
	 .reached = {2},
	 .expected = "127.0.0.1 lo 127.0.0.0/8 lo",
	 .reason = "loopback on request"},
	{{"eth0 192.168.122.1/24", "eth1 10.0.0.1/24"},
	 .other = {"eth0 192.168.122.1/24", "eth1 10.0.0.2/24"},
	 .expected = "10.0.0.1 eth1 10.0.0.0/24 eth1",
	 .reason = "an address that another node also owns is not used"},
	{{"eth0 192.168.122.1/24"},
	 .other = {"eth0 192.168.122.1/24"},
	 .expected = "eth0 192.168.122.1 (head and other both have the address 192.168.122.1)",
	 .reason = "... and the error names both nodes"},
	{{"eth0 10.0.0.1/24", "eth0 fd00::1/64"},
	 .other = {"eth0 10.0.0.2/24"},
	 .expected = "10.0.0.1 eth0 10.0.0.0/24 eth0",
	 .reason = "IPv4 before IPv6 on the same interface"},
	{{"eth0 10.0.0.1/24", "hsn0 fd00::1/64"},
	 .other = {"hsn0 fd00::2/64"},
	 .expected = "fd00::1 hsn0 fd00::/64 hsn0",
	 .reason = "IPv6 on the fabric, without brackets"},
	{{"eth0 10.0.0.1/24", "hsn0 10.1.0.1/16"},
	 .other = {"eth0 10.0.0.2/24", "hsn0 10.1.0.2/16"},
	 .request = {.iface = "eth0"},
	 .expected = "10.0.0.1 eth0 10.0.0.0/24 eth0",
	 .reason = "--iface overrules"},
	{{"eth0 10.0.0.1/24", "hsn0 10.1.0.1/16"},
	 .other = {"eth0 10.0.0.2/24", "hsn0 10.1.0.2/16"},
	 .request = {.subnet = "10.0.0.0/8"},
	 .expected = "10.1.0.1 hsn0 10.1.0.0/16 hsn0",
	 .reason = "--subnet: the best address in it"},
	{{"eth0 10.0.0.1/24", "hsn0 10.1.0.1/16"},
	 .other = {"eth0 10.0.0.2/24", "hsn0 10.1.0.2/16"},
	 .request = {.master_addr = "10.0.0.1"},
	 .expected = "10.0.0.1 eth0 10.0.0.0/24 eth0",
	 .reason = "--master-addr overrules"},
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .other = {"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .request = {.master_addr = "127.0.0.1"},
	 .expected = "127.0.0.1 lo 127.0.0.0/8 lo",
	 .reason = "agents on one machine may use loopback on request"},
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .other = {"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .request = {.single_host = true},
	 .reached = {2, 2},
	 .expected = "127.0.0.1 lo 127.0.0.0/8 lo",
	 .reason = "simulated nodes use loopback"},
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .other = {"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .request = {.single_host = true},
	 .reached = {1, 2},
	 .expected = "127.0.0.1 lo 127.0.0.0/8 lo",
	 .reason = "simulated nodes: one was too busy to test loopback"},
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .other = {"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .request = {.single_host = true, .iface = "eth0"},
	 .reached = {2, 2},
	 .expected = "10.0.0.1 eth0 10.0.0.0/24 eth0",
	 .reason = "simulated nodes with --iface"},
	{{"eth0 10.0.0.1/24"},
	 .other = {"eth0 10.0.0.2/24"},
	 .request = {.master_addr = "203.0.113.9"},
	 .expected = "--master-addr 203.0.113.9: no interface of head has that address, but rank 0 "
		     "listens on head, which has 10.0.0.1 on eth0. Give an address of that node",
	 .reason = "--master-addr that no node has"},
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24", "eth1! 10.2.0.1/24", "hsn0 10.1.0.1/16"},
	 .other = {"eth0 10.0.0.2/24"},
	 .request = {.master_addr = "10.0.0.2"},
	 .expected = "has that address (it belongs to other), but rank 0 listens on head, which "
		     "has 10.0.0.1 on eth0, 10.1.0.1 on hsn0. Give",
	 .reason = "--master-addr of another node"},
	{{"lo 127.0.0.1/8", "eth0 10.0.0.1/24"},
	 .other = {NULL},
	 .request = {.master_addr = "10.0.0.2"},
	 .expected = "which has 127.0.0.1 on lo, 10.0.0.1 on eth0. Give an address of that node",
	 .reason = "--master-addr that the only node does not have"},
	{{NULL},
	 .other = {"eth0 10.0.0.2/24"},
	 .request = {.master_addr = "203.0.113.9"},
	 .expected = "203.0.113.9   ",
	 .reason = "--master-addr of a machine whose addresses are unknown: used as given"},
	{{"eth0 10.0.0.1/24"},
	 .other = {"eth0 10.0.0.2/24"},
	 .request = {.iface = "hsn0"},
	 .expected = "--iface hsn0: head has no such interface with an address; it has eth0",
	 .reason = "an interface that does not exist"},
	{{"eth0 10.0.0.1/24", "hsn0! 10.1.0.1/24"},
	 .other = {"eth0 10.0.0.2/24"},
	 .request = {.iface = "hsn0"},
	 .expected = "eth0 10.0.0.1 (excluded by --iface hsn0)",
	 .reason = "a request that no address meets"},
	{{"eth0 10.0.0.1/24"},
	 .other = {"eth0 10.0.0.2/24"},
	 .request = {.subnet = "10.0.0.0/40"},
	 .expected = "--subnet is '10.0.0.0/40', expected a CIDR",
	 .reason = "the prefix is too long"},
	{{"eth0 10.0.0.1/24"},
	 .other = {"eth0 10.0.0.2/24"},
	 .request = {.subnet = "hsn"},
	 .expected = "--subnet is 'hsn', expected a CIDR",
	 .reason = "not a subnet"},
	{{"eth0 10.0.0.1/24"},
	 .other = {"eth0 10.0.0.2/24"},
	 .request = {.master_addr = "node1"},
	 .expected = "--master-addr is 'node1', expected a numeric address",
	 .reason = "names are refused"},
	{{"eth0 10.128.0.1/32"},
	 .other = {"ens4 10.128.0.2/32"},
	 .expected = "10.128.0.1 eth0 10.128.0.1/32 ens4",
	 .reason = "routed: no other node is in the subnet, so the kind decides"},
	{{"hsn0 10.1.0.1/25"},
	 .other = {"eth0 10.3.0.1/16", "hsn0 10.1.0.130/25"},
	 .expected = "10.1.0.1 hsn0 10.1.0.0/25 hsn0",
	 .reason = "the other node's interface of the same kind is in another subnet"},
};

static void add(struct inventory *inventory, const char *const *list, size_t max)
{
	for (size_t i = 0; i < max && list[i]; i++) {
		char iface[32];
		size_t length = strcspn(list[i], " ");
		char mark = list[i][length - 1];

		snprintf(iface, sizeof iface, "%.*s", (int)length - (mark == '!' || mark == '~'),
			 list[i]);
		struct inventory_address *address =
			make_address(inventory, iface, list[i] + length + 1);

		address->up = mark != '!';
		if (mark == '~')
			address->type = IFACE_VIRTUAL;
	}
}

/* Add each NIC in the lists once. */
static void add_nics(struct inventory *inventory, const char *const *list, size_t max)
{
	for (size_t i = 0; i < max && list[i]; i++) {
		char iface[16];
		bool known = !strncmp(list[i], "lo", 2) || !strncmp(list[i], "docker", 6);

		snprintf(iface, sizeof iface, "%.*s", (int)strcspn(list[i], " !~"), list[i]);
		for (size_t n = 0; n < inventory->nic_count; n++)
			known |= !strcmp(inventory->nics[n].net, iface);
		if (!known)
			make_nic(inventory, iface, "",
				 !strncmp(iface, "ib", 2)     ? NIC_INFINIBAND
				 : !strncmp(iface, "hsn", 3)  ? NIC_SLINGSHOT
				 : !strncmp(iface, "roce", 4) ? NIC_ROCE
							      : NIC_ETHERNET,
				 0);
	}
}

static void answer(const struct row *row, char *text, size_t size)
{
	struct inventory inventories[2] = {make_inventory("head", 1, 1, 2, 1),
					   make_inventory("other", 1, 1, 2, 1)};
	size_t count = row->other[0] ? 2 : 1;
	int shared[MAX_ADDRESSES], index = -1;
	struct plan_reach reach = {.reached = row->reached, .shared = shared};
	struct plan_network network = {0};
	struct error err = {0};
	bool some = false;

	add_nics(&inventories[0], row->first_node, MAX_ADDRESSES);
	add(&inventories[0], row->first_node, MAX_ADDRESSES);
	add_nics(&inventories[1], row->other, 4);
	add(&inventories[1], row->other, 4);
	reach.address_count = inventories[0].address_count;
	for (size_t i = 0; i < MAX_ADDRESSES; i++) {
		shared[i] = -1;
		some |= row->reached[i] != 0;
	}
	if (plan_network(inventories, count, &row->request, some ? &reach : NULL, &network, &err)) {
		snprintf(text, size, "%s", err.text);
	} else {
		if (count > 1)
			network_iface(&inventories[1], &network, &index);
		snprintf(text, size, "%s %s %s %s", network.address, network.iface, network.subnet,
			 index >= 0 && *network.subnet ? inventories[1].addresses[index].iface
						       : "");
		assert_non_null(network.why);
	}
	plan_network_free(&network);
	inventory_free(&inventories[0]);
	inventory_free(&inventories[1]);
}

static void test_rows(void **state)
{
	int failures = 0;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char text[1024];

		answer(&rows[i], text, sizeof text);
		if (strchr(rows[i].expected, '(') || strstr(rows[i].expected, "expected") ||
				    strstr(rows[i].expected, "Give")
			    ? strstr(text, rows[i].expected) != NULL
			    : !strcmp(text, rows[i].expected))
			continue;
		fprintf(stderr, "row %zu (%s):\n  expected '%s'\n  got      '%s'\n", i,
			rows[i].reason, rows[i].expected, text);
		failures++;
	}
	assert_int_equal(failures, 0);
}

/* Among NICs of one kind, the speed decides, then the distance to the GPUs. */
static void test_speed_and_nearness(void **state)
{
	struct plan_request request = {0};
	struct plan_network network = {0};
	struct error err = {0};
	struct inventory inventories[2] = {make_inventory("head", 2, 1, 2, 1),
					   make_inventory("other", 1, 1, 2, 1)};

	make_gpu(&inventories[0], "0000:81:00.0", 1);
	make_nic(&inventories[0], "ib0", "mlx5_0", NIC_INFINIBAND, 0);
	make_nic(&inventories[0], "ib1", "mlx5_1", NIC_INFINIBAND, 1);
	make_address(&inventories[0], "ib0", "10.0.0.1/16");
	make_address(&inventories[0], "ib1", "10.1.0.1/16");
	make_address(&inventories[1], "ib0", "10.0.0.2/16");
	assert_int_equal(plan_network(inventories, 2, &request, NULL, &network, &err), 0);
	assert_string_equal(network.iface, "ib1"); /* nearer to the GPU */
	plan_network_free(&network);
	inventories[0].addresses[0].speed_mbps = 400000;
	assert_int_equal(plan_network(inventories, 2, &request, NULL, &network, &err), 0);
	assert_string_equal(network.iface, "ib0"); /* faster */
	plan_network_free(&network);
	make_nic(&inventories[0], "eth9", "", NIC_ETHERNET, 1);
	make_address(&inventories[0], "eth9", "10.9.0.1/16")->speed_mbps = 800000;
	assert_int_equal(plan_network(inventories, 2, &request, NULL, &network, &err), 0);
	assert_string_equal(network.iface, "ib0"); /* the kind counts before the speed */
	plan_network_free(&network);
	inventories[0].nics[0].management = true;
	assert_int_equal(plan_network(inventories, 2, &request, NULL, &network, &err), 0);
	assert_string_equal(network.iface, "ib1"); /* no management NIC if there is a fabric */
	plan_network_free(&network);
	inventory_free(&inventories[0]);
	inventory_free(&inventories[1]);
}

/* Among networks equal in kind and speed, not the one that something else uses; then a fabric's
 * name; then the alphabet. */
static void test_equals(void **state)
{
	static const struct {
		const char *first, *second, *expected, *why;
		enum address_use uses[2];
	} ties[] = {
		{"bond0", "hsn0", "hsn0", "bond0 10.0.0.1 (its name is not a fabric's)"},
		{"eno1", "rdma0", "rdma0", "eno1 10.0.0.1 (its name is not a fabric's)"},
		{"eth0", "eth1", "eth1", "eth0 10.0.0.1 (it has the default route)", {1, 0}},
		{"eth0", "eth1", "eth0", "eth1 10.1.0.1 (it has the default route)", {0, 1}},
		{"hsn0", "eth1", "eth1", "hsn0 10.0.0.1 (it has the default route)", {1, 0}},
		{"eth0", "eth1", "eth1", "eth0 10.0.0.1 (the node's name belongs to it)", {2, 0}},
		{"eth0", "eth1", "eth0", "eth1 10.1.0.1 (the scheduler uses it)", {0, 3}},
		{"eth0", "eth1", "eth0", "eth1 10.1.0.1 (ethernet)", {1, 1}},
		{"eth0", "eth1", "eth0", "eth1 10.1.0.1 (ethernet)", {2, 3}},
		{"eth0", "eth1", "eth1", "eth0 10.0.0.1 (it has the default route)", {1, 2}},
		{"eth0", "eth1", "eth1", "eth0 10.0.0.1 (it has the default route)", {1, 3}},
		{"hsn0", "hsn1", "hsn1", "hsn0 10.0.0.1 (the node's name belongs to it)", {2, 0}},
		{"eth0", "eth1", "eth0", "eth1 10.1.0.1 (ethernet)"},
	};

	for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) {
		struct inventory inventories[2] = {make_inventory("head", 1, 1, 2, 1),
						   make_inventory("other", 1, 1, 2, 1)};
		struct plan_request request = {0};
		struct plan_network network = {0};
		struct error err = {0};

		make_nic(&inventories[0], ties[i].first, "", NIC_ETHERNET, 0);
		make_nic(&inventories[0], ties[i].second, "", NIC_ETHERNET, 0);
		make_address(&inventories[0], ties[i].first, "10.0.0.1/16");
		make_address(&inventories[0], ties[i].second, "10.1.0.1/16");
		make_address(&inventories[1], "eth0", "10.0.0.2/16");
		for (int a = 0; a < 2; a++)
			inventories[0].addresses[a].use = ties[i].uses[a];
		assert_int_equal(plan_network(inventories, 2, &request, NULL, &network, &err), 0);
		if (strcmp(network.iface, ties[i].expected) || !strstr(network.why, ties[i].why))
			fail_msg("row %zu: %s: %s", i, network.iface, network.why);
		plan_network_free(&network);
		inventory_free(&inventories[0]);
		inventory_free(&inventories[1]);
	}
}

/* berth warns if a faster network cannot be used, and names the node to look at. */
static void test_warning(void **state)
{
	static const struct {
		const char *first_node[3], *other[3], *third[3];
		int reached[3];
		const char *warning; /* part of it; NULL: none */
	} cases[] = {
		{{"eth0 10.0.0.1/24", "hsn0 10.1.0.1/16"},
		 {"eth0 10.0.0.2/24", "hsn0! 10.1.0.2/16"},
		 {"eth0 10.0.0.3/24", "hsn0 10.1.0.3/16"},
		 {3, 2},
		 "use 10.0.0.1 on eth0; the faster hsn0 (10.1.0.1) cannot be used: only 2 of 3 "
		 "nodes "
		 "can reach it; other's hsn0 is down"},
		{{"eth0 10.0.0.1/24", "hsn0 10.1.0.1/16"},
		 {"eth0 10.0.0.2/24"},
		 {"eth0 10.0.0.3/24"},
		 {3, 1},
		 "other has no address in 10.1.0.0/16; 1 more node cannot use it either"},
		{{"eth0 10.0.0.1/24", "hsn0 10.1.0.1/16"},
		 {"eth0 10.0.0.2/24", "hsn0 10.1.0.7/16"},
		 {"eth0 10.0.0.3/24", "hsn0 10.1.0.7/16"},
		 {3, 3},
		 "other and third both have the address 10.1.0.7"},
		{{"eth0 10.0.0.1/24", "hsn0 10.1.0.1/16"},
		 {"eth0 10.0.0.2/24", "hsn0 10.1.0.2/16"},
		 {"eth0 10.0.0.3/24", "hsn0 10.1.0.3/16"},
		 {3, 2},
		 "cannot be used: only 2 of 3 nodes can reach it; berth check"},
		{{"eth0 10.0.0.1/24", "hsn0! 10.1.0.1/16"},
		 {"eth0 10.0.0.2/24", "hsn0 10.1.0.2/16"},
		 {"eth0 10.0.0.3/24", "hsn0 10.1.0.3/16"},
		 {3, 1},
		 "cannot be used: down"},
		{{"eth0 10.0.0.1/24", "hsn0 10.1.0.1/16", "docker0~ 172.17.0.1/16"},
		 {"eth0 10.0.0.2/24", "hsn0 10.1.0.2/16", "docker0~ 172.17.0.1/16"},
		 {"eth0 10.0.0.3/24", "hsn0 10.1.0.3/16", "docker0~ 172.17.0.1/16"},
		 {3, 3, 1},
		 NULL},
		{{"hsn0 10.1.0.1/16", "hsn1 10.2.0.1/16"},
		 {"hsn0 10.1.0.2/16", "hsn1! 10.2.0.2/16"},
		 {"hsn0 10.1.0.3/16", "hsn1 10.2.0.3/16"},
		 {3, 2},
		 NULL}, /* another NIC of the same kind and speed is used */
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct inventory inventories[3] = {make_inventory("head", 1, 1, 2, 1),
						   make_inventory("other", 1, 1, 2, 1),
						   make_inventory("third", 1, 1, 2, 1)};
		const char *const *lists[] = {cases[i].first_node, cases[i].other, cases[i].third};
		int shared[] = {-1, -1, -1};
		struct plan_reach reach = {.reached = cases[i].reached, .shared = shared};
		struct plan_request request = {0};
		struct plan_network network = {0};
		struct error err = {0};

		for (int n = 0; n < 3; n++) {
			add_nics(&inventories[n], lists[n], 3);
			add(&inventories[n], lists[n], 3);
		}
		reach.address_count = inventories[0].address_count;
		assert_int_equal(plan_network(inventories, 3, &request, &reach, &network, &err), 0);
		if (!cases[i].warning != !network.warning ||
		    (network.warning && !strstr(network.warning, cases[i].warning)))
			fail_msg("row %zu: '%s'", i, network.warning ? network.warning : "(none)");
		plan_network_free(&network);
		for (int n = 0; n < 3; n++)
			inventory_free(&inventories[n]);
	}
}

/* The choice does not depend on the order of the addresses. */
static void test_order(void **state)
{
	static const char *const list[] = {"eth0 10.0.0.1/24", "hsn1 10.2.0.1/16",
					   "hsn0 10.1.0.1/16", "hsn0 fd00::1/64"};

	for (int turn = 0; turn < 4; turn++) {
		struct row row = {.other = {"hsn0 10.1.0.2/16"}};
		char text[1024];

		for (int i = 0; i < 4; i++)
			row.first_node[i] = list[(i + turn) % 4];
		answer(&row, text, sizeof text);
		assert_string_equal(text, "10.1.0.1 hsn0 10.1.0.0/16 hsn0");
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),   cmocka_unit_test(test_speed_and_nearness),
		cmocka_unit_test(test_equals), cmocka_unit_test(test_warning),
		cmocka_unit_test(test_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
