'use strict';
// Sends http, https and fetch of Node through the proxy of the sandbox. Node does so by itself
// from 22.21 and 24.5 on (NODE_USE_ENV_PROXY); then this does nothing.
// Agents that a library makes itself are left alone, and get no route.

const [major, minor] = process.versions.node.split('.').map(Number);
const knows = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
const written = process.env.HTTPS_PROXY || process.env.HTTP_PROXY;

if (!knows && written) install(new URL(written));

function install(proxy) {
  const http = require('node:http');
  const https = require('node:https');

  const bypassed = () => (process.env.NO_PROXY || '').toLowerCase().split(/[\s,]+/).filter(Boolean);
  const isBypassed = (host) => {
    const name = String(host || 'localhost').replace(/^\[|\]$/g, '').toLowerCase();
    return bypassed().some((entry) => {
      if (entry === '*') return true;
      const suffix = entry.replace(/^\*?\./, '');
      return name === suffix || name.endsWith('.' + suffix);
    });
  };
  const authority = (host, port) => (host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`);

  // A tunnel for both: the proxy takes CONNECT to any port.
  function tunnel(options, done) {
    const where = authority(options.host || 'localhost', options.port);
    const request = http.request({
      host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: where, agent: false,
      headers: { Host: where },
    });
    request.once('connect', (response, socket) => {
      if (response.statusCode === 200) return done(null, socket);
      socket.destroy();
      return done(refusal(where, response.statusCode));
    });
    // An answer with a body comes as a response where it is no tunnel.
    request.once('response', (response) => {
      response.resume();
      done(refusal(where, response.statusCode));
    });
    request.once('error', done);
    request.end();
  }
  function refusal(where, status) {
    const error = new Error(`The sandbox's proxy refused ${where} (HTTP ${status}).`);
    error.code = 'ERR_PROXY_TUNNEL';
    return error;
  }

  const direct = { http: http.Agent.prototype.createConnection, https: https.Agent.prototype.createConnection };
  class HttpAgent extends http.Agent {
    createConnection(options, done) {
      if (options.socketPath || isBypassed(options.host)) return direct.http.call(this, options, done);
      tunnel(options, done);
      return undefined;
    }
  }
  class HttpsAgent extends https.Agent {
    createConnection(options, done) {
      if (options.socketPath || isBypassed(options.host)) return direct.https.call(this, options, done);
      tunnel(options, (error, socket) => {
        if (error) return done(error);
        return done(null, direct.https.call(this, { ...options, socket }));
      });
      return undefined;
    }
  }
  const settings = { keepAlive: true, scheduling: 'lifo', timeout: 5000 };
  http.globalAgent = new HttpAgent(settings);
  https.globalAgent = new HttpsAgent(settings);

  // What fetch and undici of Node ask for a connection.
  const slot = Symbol.for('undici.globalDispatcher.1');
  const { EventEmitter } = require('node:events');
  class Dispatcher extends EventEmitter {
    dispatch(options, handler) {
      let request;
      let over = false;
      const fail = (error) => {
        if (over) return;
        over = true;
        if (request) request.destroy();
        handler.onError(error);
      };
      try {
        handler.onConnect((reason) => fail(reason || new Error('aborted')));
        if (over) return true;
        const url = new URL(options.path, options.origin);
        const client = url.protocol === 'https:' ? https : http;
        request = client.request(url, { method: options.method, agent: client.globalAgent });
        for (const [name, value] of pairs(options.headers)) {
          const before = request.getHeader(name);
          request.setHeader(name, before === undefined ? value : [].concat(before, value));
        }
        request.once('error', fail);
        request.once('response', (response) => {
          const raw = response.rawHeaders.map((text) => Buffer.from(text, 'latin1'));
          const resume = () => response.resume();
          response.once('error', fail);
          response.once('aborted', () => fail(new Error('terminated')));
          if (handler.onHeaders(response.statusCode, raw, resume, response.statusMessage) === false) {
            response.pause();
          }
          response.on('data', (chunk) => {
            if (!over && handler.onData(chunk) === false) response.pause();
          });
          response.once('end', () => {
            if (over) return;
            over = true;
            handler.onComplete([]);
          });
        });
        send(request, options.body).catch(fail);
      } catch (error) {
        fail(error);
      }
      return true;
    }
    close(done) {
      if (done) return done();
      return Promise.resolve();
    }
    destroy(error, done) {
      return this.close(typeof error === 'function' ? error : done);
    }
  }
  function pairs(headers) {
    if (!headers) return [];
    if (Array.isArray(headers)) {
      const found = [];
      for (let at = 0; at + 1 < headers.length; at += 2) found.push([String(headers[at]), String(headers[at + 1])]);
      return found;
    }
    const entries = typeof headers[Symbol.iterator] === 'function' ? [...headers] : Object.entries(headers);
    return entries.map(([name, value]) => [String(name), value]);
  }
  async function send(request, body) {
    if (body === null || body === undefined) return request.end();
    if (typeof body === 'string' || ArrayBuffer.isView(body)) return request.end(body);
    for await (const chunk of body) {
      if (!request.write(chunk)) await new Promise((done) => request.once('drain', done));
    }
    return request.end();
  }
  Object.defineProperty(globalThis, slot, {
    value: new Dispatcher(), writable: true, enumerable: false, configurable: false,
  });
}
