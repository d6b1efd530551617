// SPDX-License-Identifier: BSD-3-Clause
// Print the HTML that a browser would show for a page of berth report: page.js FILE. It runs the page's script in a document that
// has only what the script uses. As a browser does, it checks that the page's policy allows the script.
'use strict';
const crypto = require('crypto'), fs = require('fs'), vm = require('vm');

class Element {
	constructor(name) { Object.assign(this, {name, attributes: {}, children: [], style: {}}); }
	setAttribute(key, value) { this.attributes[key] = String(value); }
	append(...children) { this.children.push(...children); }
	appendChild(child) { this.children.push(child); return child; }
	addEventListener() {}
	get html() {
		const escape = text => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');
		const attributes = Object.keys(this.attributes).map(key => ` ${key}="${escape(this.attributes[key])}"`).join('');
		const inner = this.children.map(child => typeof child === 'string' ? escape(child) : child.html).join('');
		return `<${this.name}${attributes}>${inner}</${this.name}>` + (/^(h1|h2|p|tr|div|pre|figure|span)$/.test(this.name) ? '\n' : '');
	}
}

const page = fs.readFileSync(process.argv[2], 'utf8'), script = page.match(/<script>(.*?)<\/script>/s)[1];
const hash = crypto.createHash('sha256').update(script).digest('base64');
if (!page.includes(`script-src 'sha256-${hash}';`))
	throw Error('a browser would not run the script');
if ((page.match(/<script/g) || []).length !== 3)
	throw Error('there are other scripts');
const body = new Element('body'), ready = [];
const data = id => ({textContent: page.split(`id="${id}">`)[1].split('</script>')[0]});
const create = (first, second) => new Element(second || first);
vm.runInNewContext(script, {
	document: {body, getElementById: data, createElement: create, createElementNS: create},
	addEventListener: (name, call) => ready.push(call),
});
ready.forEach(call => call());
console.log(body.html);
