/* SPDX-License-Identifier: BSD-3-Clause */
/* A row per NUMA node: its cores on the left, its GPUs in the middle, its NICs on the right, and a
 * line from each rank's GPU to its NICs. */
#include "report/plan_svg.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	WIDTH = 900,
	LEFT = 10,
	CORE = 25, /* from one core to the next */
	CORES_A_LINE = 16,
	GPU_X = 450,
	GPU_WIDTH = 170,
	NIC_X = 720,
	NIC_WIDTH = 162,
	DEVICE = 30, /* from one device to the next */
	TITLE = 24,
	COLOURS = 8,
};

struct page {
	struct bytes *out;
	bool failed; /* memory is out */
};

struct drawing {
	struct page page;
	const struct inventory *inventory;
	const struct plan_node *node;
	int *gpu_y, *nic_y; /* their middles */
	int y;
};

/* Okabe and Ito's colours, which colour-blind people can tell apart. */
static const char style[] =
	"<style>svg{background:#fff}text{font:12px "
	"system-ui,sans-serif;fill:#111}rect{fill:none;stroke:#667}"
	".t{font-weight:bold}.l{fill:none;stroke-width:2}"
	"@media(prefers-color-scheme:dark){svg{background:#111}text{fill:#eee}rect{stroke:#99a}}"
	".c0{fill:#e69f0080;stroke:#e69f00}.c1{fill:#56b4e980;stroke:#56b4e9}"
	".c2{fill:#009e7380;stroke:#009e73}.c3{fill:#f0e44280;stroke:#b0a412}"
	".c4{fill:#0072b280;stroke:#0072b2}.c5{fill:#d55e0080;stroke:#d55e00}"
	".c6{fill:#cc79a780;stroke:#cc79a7}.c7{fill:#99999980;stroke:#777}"
	".l{fill:none}</style>\n";

static void page_add(struct page *page, const char *xml)
{
	if (!page->failed && bytes_add(page->out, xml, strlen(xml)))
		page->failed = true;
}

/* At most 255 bytes. */
__attribute__((format(printf, 2, 3))) static void page_format(struct page *page, const char *format,
							      ...)
{
	char xml[256];
	va_list args;

	va_start(args, format);
	vsnprintf(xml, sizeof xml, format, args);
	va_end(args);
	page_add(page, xml);
}

/* Names come from a file of the user's, so neither markup nor control characters are kept. */
static void page_text(struct page *page, const char *text)
{
	for (size_t size; *text; text += size) {
		size_t control = text_control_length(text);
		const char *xml = control	 ? "\xef\xbf\xbd"
				  : *text == '<' ? "&lt;"
				  : *text == '>' ? "&gt;"
				  : *text == '&' ? "&amp;"
						 : NULL;

		size = control ? control : text_utf8_length(text);
		size += !size;
		if (xml)
			page_add(page, xml);
		else
			page_format(page, "%.*s", (int)size, text);
	}
}

static const struct plan_rank *rank_of_core(const struct plan_node *node,
					    const struct inventory_core *core)
{
	for (size_t r = 0; r < node->rank_count; r++)
		if (idset_intersects(node->ranks[r].cpus_os, core->cpus_os))
			return &node->ranks[r];
	return NULL;
}

static const struct plan_rank *rank_of_gpu(const struct plan_node *node, int index)
{
	for (size_t r = 0; r < node->rank_count; r++)
		for (size_t g = 0; g < node->ranks[r].gpu_count; g++)
			if (node->ranks[r].gpus[g].index == index)
				return &node->ranks[r];
	return NULL;
}

/* Does a device belong to the row of NUMA node numa? -1: of none that has a row. */
static bool is_in_row(const struct inventory *inventory, const struct idset *numa_os, int numa)
{
	int first = -1;

	for (size_t n = 0; n < inventory->numa_count && first < 0; n++)
		if (idset_has(numa_os, inventory->numas[n].numa_os))
			first = inventory->numas[n].numa_os;
	return first == numa;
}

static void box(struct drawing *drawing, int x, int y, int width, int height,
		const struct plan_rank *rank)
{
	page_format(&drawing->page, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\"",
		    x, y, width, height);
	if (rank)
		page_format(&drawing->page, " class=\"c%d\"", rank->local_rank % COLOURS);
	page_add(&drawing->page, "/>");
}

static void text(struct drawing *drawing, int x, int y, const char *words)
{
	page_format(&drawing->page, "<text x=\"%d\" y=\"%d\">", x, y);
	page_text(&drawing->page, words);
	page_add(&drawing->page, "</text>\n");
}

/* Return the height. */
static int draw_cores(struct drawing *drawing, int numa)
{
	const struct inventory *inventory = drawing->inventory;
	int count = 0;
	char number[16];

	for (size_t c = 0; c < inventory->core_count; c++) {
		const struct inventory_core *core = &inventory->cores[c];
		const struct plan_rank *rank = rank_of_core(drawing->node, core);
		int x = LEFT + 8 + count % CORES_A_LINE * CORE,
		    y = drawing->y + TITLE + count / CORES_A_LINE * CORE;

		if (core->numa_os != numa)
			continue;
		box(drawing, x, y, CORE - 3, CORE - 5, rank);
		if (rank) {
			snprintf(number, sizeof number, "%d", rank->local_rank);
			text(drawing, x + 4, y + 14, number);
		}
		count++;
	}
	return (count + CORES_A_LINE - 1) / CORES_A_LINE * CORE;
}

static int draw_gpus(struct drawing *drawing, int numa)
{
	const struct inventory *inventory = drawing->inventory;
	int count = 0;
	char words[64];

	for (size_t g = 0; g < inventory->gpu_count; g++) {
		const struct inventory_gpu *gpu = &inventory->gpus[g];
		const struct plan_rank *rank = rank_of_gpu(drawing->node, gpu->index);
		int y = drawing->y + TITLE + count * DEVICE;

		if (!is_in_row(inventory, gpu->numa_os, numa))
			continue;
		box(drawing, GPU_X, y, GPU_WIDTH, DEVICE - 6, rank);
		snprintf(words, sizeof words, rank ? "GPU %d: rank %d" : "GPU %d", gpu->index,
			 rank ? rank->local_rank : 0);
		text(drawing, GPU_X + 8, y + 16, words);
		drawing->gpu_y[g] = y + (DEVICE - 6) / 2;
		count++;
	}
	return count * DEVICE;
}

static int draw_nics(struct drawing *drawing, int numa)
{
	const struct inventory *inventory = drawing->inventory;
	int count = 0;
	char words[128];

	for (size_t n = 0; n < inventory->nic_count; n++) {
		const struct inventory_nic *nic = &inventory->nics[n];
		int y = drawing->y + TITLE + count * DEVICE;

		if (!is_in_row(inventory, nic->numa_os, numa))
			continue;
		box(drawing, NIC_X, y, NIC_WIDTH, DEVICE - 6, NULL);
		snprintf(words, sizeof words, "%.12s %.12s%s", nic->net, nic->rdma,
			 nic->state == NIC_STATE_DOWN ? " (down)" : "");
		text(drawing, NIC_X + 8, y + 16, words);
		drawing->nic_y[n] = y + (DEVICE - 6) / 2;
		count++;
	}
	return count * DEVICE;
}

static void draw_row(struct drawing *drawing, const char *title, int numa)
{
	int height, more, begin = drawing->y;

	height = draw_cores(drawing, numa);
	more = draw_gpus(drawing, numa);
	height = more > height ? more : height;
	more = draw_nics(drawing, numa);
	height = more > height ? more : height;
	if (!height)
		return;
	text(drawing, LEFT + 8, begin + 16, title);
	box(drawing, LEFT, begin, WIDTH - 2 * LEFT, height + TITLE + 4, NULL);
	drawing->y += height + TITLE + 12;
}

static void draw_line(struct drawing *drawing, const struct plan_rank *rank,
		      const struct plan_nic *used)
{
	const struct inventory *inventory = drawing->inventory;
	int from = 0, to = 0, x = GPU_X + GPU_WIDTH;

	for (size_t g = 0; g < inventory->gpu_count && rank->gpu_count; g++)
		if (inventory->gpus[g].index == rank->gpus[0].index)
			from = drawing->gpu_y[g];
	for (size_t n = 0; n < inventory->nic_count; n++)
		if (!strcmp(inventory->nics[n].net, used->net) &&
		    !strcmp(inventory->nics[n].rdma, used->rdma) &&
		    inventory->nics[n].port == used->port)
			to = drawing->nic_y[n];
	if (!from || !to)
		return;
	page_format(&drawing->page, "<path class=\"c%d l\" d=\"M%d %dC%d %d %d %d %d %d\"/>",
		    rank->local_rank % COLOURS, x, from, x + 50, from, NIC_X - 50, to, NIC_X, to);
	text(drawing, x + 6, from - 3, path_class_name(used->path));
}

static void describe_plan(struct drawing *drawing)
{
	struct page *page = &drawing->page;

	page_add(page, "<title id=\"t\">The berths of ");
	page_text(page, drawing->inventory->node ? drawing->inventory->node : "a node");
	page_add(page, "</title>\n<desc id=\"d\">");
	for (size_t r = 0; r < drawing->node->rank_count; r++) {
		const struct plan_rank *rank = &drawing->node->ranks[r];
		char *cpus = idset_format(rank->cpus_os);

		page_format(page, "Rank %d:", rank->local_rank);
		for (size_t g = 0; g < rank->gpu_count; g++)
			page_format(page, " GPU %d,", rank->gpus[g].index);
		page_format(page, " CPUs %.200s", cpus ? cpus : "?");
		for (size_t n = 0; n < rank->nic_count; n++) {
			page_add(page, ", NIC ");
			page_text(page,
				  *rank->nics[n].net ? rank->nics[n].net : rank->nics[n].rdma);
			page_format(page, " (%s)", path_class_name(rank->nics[n].path));
		}
		page_add(page, ".\n");
		free(cpus);
	}
	page_add(page, "</desc>\n");
}

static void draw(struct drawing *drawing)
{
	const struct inventory *inventory = drawing->inventory;
	char title[64];

	page_add(&drawing->page, style);
	describe_plan(drawing);
	snprintf(title, sizeof title, "Ranks on %.50s",
		 inventory->node ? inventory->node : "a node");
	text(drawing, LEFT, drawing->y + 8, title);
	drawing->y += TITLE;
	for (size_t n = 0; n < inventory->numa_count; n++) {
		const struct inventory_numa *numa = &inventory->numas[n];

		snprintf(title, sizeof title, "Package %d, NUMA node %d", numa->package,
			 numa->numa_os);
		draw_row(drawing, title, numa->numa_os);
	}
	draw_row(drawing, inventory->numa_count ? "Near no NUMA node" : "The node", -1);
	for (size_t r = 0; r < drawing->node->rank_count; r++)
		for (size_t n = 0; n < drawing->node->ranks[r].nic_count; n++)
			draw_line(drawing, &drawing->node->ranks[r],
				  &drawing->node->ranks[r].nics[n]);
	text(drawing, LEFT, drawing->y + 8,
	     "Paths from GPU to NIC: PIX one PCI switch, PXB several, PHB one host bridge, "
	     "NODE one NUMA node, PKG one package, SYS two");
	drawing->y += TITLE;
}

int plan_svg(const struct inventory *inventory, const struct plan_node *node, struct bytes *out,
	     struct error *err)
{
	struct bytes body = {0};
	struct page head = {.out = out};
	struct drawing drawing = {
		.page = {.out = &body},
		.inventory = inventory,
		.node = node,
		.gpu_y = calloc(inventory->gpu_count + 1, sizeof(int)),
		.nic_y = calloc(inventory->nic_count + 1, sizeof(int)),
		.y = 10,
	};
	bool failed = !drawing.gpu_y || !drawing.nic_y;

	if (!failed) {
		draw(&drawing);
		page_format(&head,
			    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
			    "role=\"img\" aria-labelledby=\"t d\">\n",
			    WIDTH, drawing.y);
		failed = drawing.page.failed || head.failed ||
			 bytes_add(out, body.data, body.size) ||
			 bytes_add(out, "</svg>\n", strlen("</svg>\n"));
	}
	bytes_free(&body);
	free(drawing.gpu_y);
	free(drawing.nic_y);
	return failed ? error_memory(err, "the picture") : 0;
}
