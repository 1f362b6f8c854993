// Shows the API's own description. `validatorUrl` is off: by default Swagger UI asks a service on the internet.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
